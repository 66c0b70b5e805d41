"""Grows and shrinks the cluster. This package decides which executors to request from providers,
and handles the answers of providers and the registrations of new executors.
"""
