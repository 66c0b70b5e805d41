"""Moves requests, gangs, slots and executors through their states; shared by handlers and the
cycle.
"""
