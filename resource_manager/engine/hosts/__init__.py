"""Keeps the ledger of each host: its capacity, the bookings of its slots, and the cpus that the
slots hold.
"""
