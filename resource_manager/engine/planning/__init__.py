"""Computes which executors to request from providers, and decides whether a gang could be placed as
a whole.
"""
