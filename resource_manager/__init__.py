"""The resource manager: keeps the books of hosts, slots and requests."""
