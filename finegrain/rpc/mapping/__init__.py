"""Converts dataclasses to protocol messages and back, by the names and types of their fields.

Services and the client use this package. Conversions to other forms use `finegrain/mapping`. Each
`Reader` and `Writer` has a table of the differences between a class and its message.
"""
