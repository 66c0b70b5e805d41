"""Converts dataclasses to protocol messages and back, by their fields and types.

Services and the client import it; everything else maps with `finegrain/mapping`. What differs
between a class and its message stands in the tables that a `Reader` or a `Writer` is made of.
"""
