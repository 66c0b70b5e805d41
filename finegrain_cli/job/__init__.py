"""Implements `finegrain job run` and `finegrain job status`, which run a job graph and show its
progress.
"""
