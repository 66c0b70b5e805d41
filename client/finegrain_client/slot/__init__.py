"""Implements the handle of a slot. The handle gives access to the size, the tasks, and the reuse of
the slot.
"""
