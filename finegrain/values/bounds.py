"""Defines the smallest and largest numbers that the cluster accepts from programs and people.

Resource manager, executors, helper, client and configuration check the same bounds. If one part
accepted a larger number, another part would fail later, and the sender of the number would get no
error. The helper imports this module, so this module imports nothing but the standard library.
"""

from __future__ import annotations

AMOUNT_MAX = 2**53
"""Largest accepted amount. It is far above the capacity of any host, and exact in the JSON of every
language.
"""

CPU_MILLI_MIN = 10
"""Smallest cpu amount of a slot: a hundredth of a cpu."""

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

PRIORITY_MIN, PRIORITY_MAX = -100, 100

TIME_LIMIT_MS_MIN, TIME_LIMIT_MS_MAX = 1_000, 10 * 365 * 24 * 3600 * 1000
"""Shortest and longest time limit of a slot: 1 s and 10 years."""

PIDS_MAX = 1 << 22
"""Largest limit of processes of one slot. The kernel has no larger process id."""

GRACE_MS_MAX = 24 * 3600 * 1000
"""Longest time between SIGTERM and SIGKILL of a task: one day."""

TASK_TIME_MS_MAX = 365 * 24 * 3600 * 1000
"""Longest run time limit of one task: 365 days."""

SUBMIT_WAIT_MS_MAX = 1_000
"""Longest time for which the submission of a task waits for the end of the task: 1 s."""

OUTPUT_BYTES_MAX = 1 << 50
"""Largest stored part of one output stream of a task, and highest position in it: 1 PiB."""

COMMAND_BYTES_MAX = 128 * 1024
"""Longest command line of a task, and largest environment, in bytes."""

ADDED_ENVIRONMENT_BYTES_MAX = 64 * 1024
"""Space for the variables that an executor adds to the environment of a task, in bytes."""

TOTAL_MAX = 2**63 - 1
"""Largest sum in an answer, which is the largest 64-bit integer. It replaces larger sums."""
