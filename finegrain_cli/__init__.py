"""Implements the `finegrain` command. Only this package may import all other packages, and it
imports them lazily.
"""
