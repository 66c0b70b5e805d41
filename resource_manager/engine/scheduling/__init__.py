"""What `Decide` does: the cycle, reservations, gangs, resizes, and commands to executors."""
