"""Writes the text that commands print: tables, maps, explanations."""
