"""Grows and shrinks the cluster: decides which executors to request from providers, and handles
what the providers and the new executors report.
"""
