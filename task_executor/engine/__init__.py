"""The executor's slot table and its arithmetic.

Pure code: no network, disk, clock or kernel access.
"""
