"""Detects CPUs, NUMA nodes, memory, limits and devices of a Linux host.

`detect` reads the whole topology. `allowed_cpus` reads only the CPUs that can change at run time.
Each module of this package except `assemble.py` and `reader.py` reads one subject from files of
/sys and /proc.
"""

from task_executor.host.detection.assemble import allowed_cpus, detect

__all__ = ["allowed_cpus", "detect"]
