"""Explains why requests wait, and builds lists and views. This package never changes the engine's
state.
"""
