"""Checks that the ledgers agree with each other. The checks never change the engine's state."""
