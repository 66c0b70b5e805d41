"""The ledger of hosts: capacity, what slots have booked, and which cpus they hold."""
