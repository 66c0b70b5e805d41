"""Reads which CPUs exist, are online, and are isolated.

Maps of siblings, caches, nodes and PCI devices can name CPUs that are offline or do not exist. So
callers use only the online CPUs of each map. The files ``present`` and ``possible`` and the highest
CPU number do not show how many CPUs are online. This module does not use the file ``offline``,
which also lists possible CPUs that do not exist.
"""

from dataclasses import dataclass
from typing import Final

from finegrain.cpuset import EMPTY, CpuSet
from task_executor.host.detection.reader import TreeReader

CPU: Final = "sys/devices/system/cpu"


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """The CPU numbers of a host, by state."""

    online: CpuSet
    online_source: str
    offline: CpuSet
    possible: CpuSet | None
    present: CpuSet | None
    isolated: CpuSet
    nohz_full: CpuSet


def read_cpus(reader: TreeReader) -> CpuFacts:
    """Returns the CPU numbers of a host. Warns if no online CPU was found."""
    directories = CpuSet(reader.numbered(CPU, "cpu"))
    online, source = _online(reader, directories)
    if not online:
        reader.warn("no online CPU found in /sys or /proc")
    present = reader.cpu_list(f"{CPU}/present")
    # A cpu exists if it is present or has a directory. A cpu that is only possible is possibly
    # never added.
    existing = directories | (present or EMPTY)
    return CpuFacts(
        online=online,
        online_source=source,
        offline=existing - online,
        possible=reader.cpu_list(f"{CPU}/possible"),
        present=present,
        isolated=(reader.cpu_list(f"{CPU}/isolated") or EMPTY) & online,
        nohz_full=(reader.cpu_list(f"{CPU}/nohz_full") or EMPTY) & online,
    )


def _online(reader: TreeReader, directories: CpuSet) -> tuple[CpuSet, str]:
    """Returns the online CPUs and their source: the first of four sources that has data."""
    listed = reader.cpu_list(f"{CPU}/online")
    if listed:
        return listed, f"{CPU}/online"
    # A CPU without the file `online`, such as cpu0 on x86, cannot be taken offline. So it is
    # online.
    flags = {cpu: reader.integer(f"{CPU}/cpu{cpu}/online") for cpu in directories}
    flagged = CpuSet(cpu for cpu, flag in flags.items() if flag != 0)
    if flagged:
        reported = any(flag is not None for flag in flags.values())
        return flagged, f"{CPU}/cpuN/online" if reported else f"{CPU}/cpuN"
    names = (line.split(maxsplit=1)[0] for line in reader.lines("proc/stat") if line.strip())
    tails = (name[3:] for name in names if name.startswith("cpu"))
    # The line "cpu" without a number is the sum of all CPUs.
    running = CpuSet(int(tail) for tail in tails if tail.isdecimal() and len(tail) <= 5)
    return running, "proc/stat"
