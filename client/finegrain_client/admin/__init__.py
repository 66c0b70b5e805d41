"""Calls for operators: drain, forget, release, and change groups and settings."""
