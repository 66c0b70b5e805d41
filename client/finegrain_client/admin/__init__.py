"""Calls for operators: drain or forget executors, release slots, change groups and settings."""
