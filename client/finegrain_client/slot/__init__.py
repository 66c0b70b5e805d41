"""Implements the handle of a slot. It gives access to the size, the tasks, and the reuse of the
slot.
"""
