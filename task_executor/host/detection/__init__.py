"""Detection of CPUs, NUMA nodes, memory, limits and devices of a Linux host.

The entry is ``detect``; each module beside it answers one question from files of /sys and /proc.
"""

from task_executor.host.detection.assemble import detect

__all__ = ["detect"]
