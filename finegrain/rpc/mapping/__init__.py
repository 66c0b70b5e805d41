"""Converts dataclasses to protocol messages and back, by the names and types of their fields.

Services and the client use it; all other conversions use `finegrain/mapping`. The tables of a
`Reader` or a `Writer` list where a class and its message differ.
"""
