"""Translates messages to the engine's values and back; one module per subject."""
