"""Defines the commands, with one module per topic.

Imports of heavy modules are inside the functions. So `finegrain --help` starts fast.
"""
