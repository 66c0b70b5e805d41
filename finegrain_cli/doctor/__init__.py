"""Implements the checks of `finegrain doctor`, with one module per topic. No check changes the
host.
"""
