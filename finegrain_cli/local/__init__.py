"""Runs the local cluster of `finegrain up`: a resource manager and executors on this host."""
