"""The slot table and its arithmetic, pure."""
