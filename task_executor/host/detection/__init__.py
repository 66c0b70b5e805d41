"""Detection of CPUs, NUMA nodes, memory, limits and devices of a Linux host.

The entry is `detect`; `allowed_cpus` reads again what changes at run time. Each module beside it
answers one question from files of /sys and /proc.
"""

from task_executor.host.detection.assemble import allowed_cpus, detect

__all__ = ["allowed_cpus", "detect"]
