"""Computes which executors to request, and whether a gang could be placed as a whole."""
