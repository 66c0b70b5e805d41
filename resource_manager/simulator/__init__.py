"""Runs the real engine in virtual time, for synthetic jobs and batch logs. The simulator needs no
network and no hosts.
"""
