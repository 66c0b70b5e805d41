"""Keeps the pending work of each job, and the order in which requests and items are tried."""
