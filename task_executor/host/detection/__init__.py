"""Detects CPUs, NUMA nodes, memory, limits and devices of a Linux host.

`detect` reads everything; `allowed_cpus` reads again what changes at run time. Each module beside
it reads one subject from files of /sys and /proc.
"""

from task_executor.host.detection.assemble import allowed_cpus, detect

__all__ = ["allowed_cpus", "detect"]
