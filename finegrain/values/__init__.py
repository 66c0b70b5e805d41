"""Defines values that several programs exchange. All programs use the same class for a value."""
