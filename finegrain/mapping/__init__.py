"""Converts dataclasses to JSON and rows and back, by their fields and types.

Standard library only, because the privileged helper and the client load it. The functions are
compiled once per class, at first use, so they cost what hand-written ones would. Messages of the
protocol have their own mapper: `finegrain/rpc/mapping`.
"""
