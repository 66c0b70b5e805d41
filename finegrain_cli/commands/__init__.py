"""Defines the commands, with one module per topic.

Each function imports the modules that take long to load. So `finegrain --help` starts fast.
"""
