"""Implements `finegrain batch`, which runs many threads of work, in the foreground or in the
background.
"""
