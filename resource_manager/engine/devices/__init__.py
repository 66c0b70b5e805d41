"""Keeps the devices of one host: the shares that slots have of them, and the choice for a new
slot.
"""
