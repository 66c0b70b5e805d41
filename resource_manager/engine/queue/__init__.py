"""Keeps the pending requests, gangs and resizes of each job, and the order in which they are
tried.
"""
