"""Moves requests, gangs, slots and executors through their states. Event handlers and the
scheduling cycle use this package.
"""
