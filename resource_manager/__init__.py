"""The resource manager: keeps the state of hosts, slots and requests, and decides placement."""
