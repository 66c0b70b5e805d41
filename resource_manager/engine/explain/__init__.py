"""Answers questions of readers: why a request waits, lists, views. Never changes the engine's
state.
"""
