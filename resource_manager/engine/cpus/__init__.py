"""Which cpus and NUMA nodes a slot gets. No clock, no ids, no I/O."""
