"""Grows and shrinks the cluster: which executors to order from providers, and what follows from
it.
"""
