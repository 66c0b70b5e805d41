"""The ledgers of hosts: the capacity of each host, the bookings of its slots, and the cpus that the
slots hold.
"""
