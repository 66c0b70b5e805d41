"""Handles events of executors, and of administrators about executors and hosts."""
