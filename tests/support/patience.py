"""The time that tests wait for an event that must happen."""

PATIENCE_S = 120.0
"""A test that waits longer has failed. This is no measurement: a busy machine may be slow."""
