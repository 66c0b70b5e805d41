"""Defines the largest numbers that the cluster accepts from programs and people.

Resource manager, executors, helper and client check the same bounds. If one of them accepted a
larger number, another would fail later, and the sender of the number would get no error.
"""

from __future__ import annotations

AMOUNT_MAX = 2**53
"""Largest accepted amount. It is far above the capacity of any host, and exact in the JSON of every
language.
"""

CPU_MILLI_MAX = 10**8
"""Largest cpu amount of one host or slot, and highest cpu limit: 100,000 cpus. The helper never
writes a higher limit.
"""

CORES_MAX = 16_384
"""Maximum number of cores in the topology of a host."""

NUMA_NODES_MAX = 1_024
"""Maximum number of NUMA nodes of a host. The kernel has the same limit."""

COUNTER_MAX = 2**53
"""Highest epoch, generation or number that is accepted in a message."""

RAISED_EPOCH_MAX = 2**52
"""The highest value to which an administrator can raise the epoch of a database. Later epochs then
stay below `COUNTER_MAX`.
"""

TIME_LIMIT_MS_MIN, TIME_LIMIT_MS_MAX = 1_000, 10 * 365 * 24 * 3600 * 1000
"""Shortest and longest time limit of a slot: 1 s and 10 years."""

TOTAL_MAX = 2**63 - 1
"""Largest sum in an answer, which is the largest 64-bit integer. It replaces larger sums."""
