"""Converts dataclasses to JSON data and to table rows and back, by their fields and types.

This package uses only the standard library, because the privileged helper and the client load it.
Each mapper is compiled once per class, on first use. So a mapper is as fast as hand-written code.
Protocol messages have a separate mapper: `finegrain/rpc/mapping`.
"""
