"""Defines the types that all programs share: values, cpu sets, topology, errors.

This package imports no other package of this project.
"""
