"""Grows and shrinks the cluster. This package decides which executors are requested from providers
and given back. The package also handles the answers of providers and the registrations of new
executors.
"""
