"""Explains why requests wait, and builds lists and views. It never changes the engine's state."""
