"""The executor's slot table and its arithmetic.

The code of this package is pure: it does not use the network, the disk, the clock or the kernel.
"""
