"""Implements the calls for administrators: drain or forget executors, release slots, change groups
and settings.
"""
