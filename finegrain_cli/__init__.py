"""Implements the `finegrain` command. Only this package may import all other packages. It imports
them lazily.
"""
