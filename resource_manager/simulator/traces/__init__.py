"""Logs of real clusters, read as jobs and nodes that the simulator can run."""
