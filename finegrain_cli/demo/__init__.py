"""Implements `./dev demo`, which runs a real job on a small cluster on this host, and then removes
the cluster.
"""
