"""Providers start and stop executors. Administrators configure providers in a file."""
