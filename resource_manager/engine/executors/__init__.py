"""Handles events of executors, and of operators about executors and hosts."""
