"""Runs the real engine in virtual time, for synthetic jobs and batch logs: no clock, network or
hosts.
"""
