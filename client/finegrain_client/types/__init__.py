"""Defines the values that the client returns, which are frozen and have a documented JSON form."""
