"""Decides which cpus, NUMA nodes and devices of a host a slot gets."""
