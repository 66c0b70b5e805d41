"""Shared vocabulary: value types, cpu sets, topology, errors.

It imports no other package of ours.
"""
