"""The ledger of hosts: capacity, what slots book, and which cpus they hold."""
