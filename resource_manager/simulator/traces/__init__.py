"""Readers for logs of real clusters, which return jobs and nodes that the simulator can run."""
