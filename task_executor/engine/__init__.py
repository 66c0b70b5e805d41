"""Implements the slot table of the executor, and computes with the amounts of its slots.

The code of this package is pure: it does not use the network, the disk, the clock or the kernel.
"""
