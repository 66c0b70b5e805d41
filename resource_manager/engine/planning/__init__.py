"""Computes which executors to request from providers, and whether a gang could be placed as a
whole.
"""
