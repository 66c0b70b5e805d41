"""Implements the task executor, which carves, enforces and reports the slots of one host."""
