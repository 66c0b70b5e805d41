"""Calls between the processes: statuses, channels, tokens, wire forms, the guarded server."""
