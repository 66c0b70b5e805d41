"""Checks that the ledgers agree with each other. Never changes the engine's state."""
