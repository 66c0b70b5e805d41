"""How long tests wait for what must happen."""

PATIENCE_S = 120.0
"""A test that waits longer than this hangs.  It measures nothing: a busy machine may take long."""
