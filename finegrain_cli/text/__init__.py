"""Text that commands print: tables, maps, explanations."""
