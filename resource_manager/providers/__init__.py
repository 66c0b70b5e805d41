"""Providers, which start and stop executors, and the file with which operators configure them."""
