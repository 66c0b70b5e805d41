"""Runs the real engine in virtual time, for synthetic jobs and batch logs. Needs no clock, network
or hosts.
"""
