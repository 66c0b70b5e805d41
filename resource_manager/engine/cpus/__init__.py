"""Which cpus and NUMA nodes a slot gets. Pure: no clock, no ids, no I/O."""
