"""Checks which numbers of threads some whole cores of a host have together.

Where all cores have equally many threads, these are the multiples of that number. Cores may differ,
for example if the second thread of some is offline: then the numbers are sums over cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from resource_manager.engine.cpus.layout import CpuLayout


def aligned(layout: CpuLayout, need: int) -> bool:
    """Returns True if some whole pinnable cores of the host have exactly `need` threads
    together.
    """
    if layout.uniform_cores:
        return need % layout.per_core == 0
    return adds_up(layout, layout.pinnable, need)


def adds_up(layout: CpuLayout, cpus: int, need: int) -> bool:
    """Returns True if some of the cores that lie in `cpus` entirely have exactly `need` threads
    together.

    Args:
        layout: the host.
        cpus: cpus, as bits.
        need: number of threads.
    """
    return sums_to(whole_widths(layout.core_masks, cpus), need)


def whole_widths(cores: Iterable[int], cpus: int) -> Counter[int]:
    """Returns how many cores of each width lie in `cpus` entirely."""
    return Counter(core.bit_count() for core in cores if not core & ~cpus)


def total_widths(parts: Iterable[Mapping[int, int]]) -> Counter[int]:
    """Returns the same for several groups of cores together."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return total


def sums_to(widths: Mapping[int, int], need: int) -> bool:
    """Returns True if some of these cores have exactly `need` threads together.

    Args:
        widths: number of cores by width.
        need: number of threads.
    """
    sums = 1  # bit n is set if some of the cores have n threads together
    for width, count in widths.items():
        step = 1  # 1, 2, 4, ... cores and the rest: every number of cores is a sum of these
        while (left := count - step + 1) > 0:
            sums |= sums << width * min(step, left)
            step *= 2
    return bool(sums >> need & 1)
