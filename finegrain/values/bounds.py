"""The largest numbers that the cluster accepts from its members and from people.

Resource manager, executors, helper and client check against the same bounds. A number beyond them
would fail later, where its sender gets no error.
"""

from __future__ import annotations

AMOUNT_MAX = 2**53
"""Largest accepted amount: far beyond any host, and exact in every language's JSON."""

CPU_MILLI_MAX = 10**8
"""Most cpu of one host or slot, and the highest cpu limit: 100,000 cpus. The helper writes no
higher limit.
"""

CORES_MAX = 16_384
"""Most cores in the topology of a host."""

NUMA_NODES_MAX = 1_024
"""Most NUMA nodes of a host, as in the kernel."""

COUNTER_MAX = 2**53
"""Highest epoch, generation or number that is accepted in a message."""

RAISED_EPOCH_MAX = 2**52
"""Highest epoch above which an operator can raise the epoch of a database. So the epochs that
follow stay below `COUNTER_MAX`.
"""

TOTAL_MAX = 2**63 - 1
"""Largest sum in an answer: what a 64-bit integer holds. Larger sums are cut to it."""
