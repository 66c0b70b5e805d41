"""Configuration: one model, merged from flags, environment, files and defaults."""
