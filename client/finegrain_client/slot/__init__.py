"""Implements the handle of a slot: its size, its tasks, and its reuse."""
