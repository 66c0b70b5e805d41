"""Reads the configuration: one model, merged from flags, environment, files and defaults."""
