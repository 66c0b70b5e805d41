"""Moves requests, gangs, slots and executors through their states. Both event handlers and the
scheduling cycle use it.
"""
