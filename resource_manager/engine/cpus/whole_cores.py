"""Checks whether some whole cores of a host together have exactly a given number of threads.

If each core has 2 threads, every even number is possible. Cores can also have different numbers of
threads, for example because threads are offline. Example: three cores with 1, 4 and 4 threads can
give 1, 4, 5, 8 or 9 threads. The number of threads of a core is called its width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from resource_manager.engine.cpus.layout import CpuLayout


def aligned(layout: CpuLayout, need: int) -> bool:
    """Returns True if some whole pinnable cores of the host together have exactly `need`
    threads.
    """
    if layout.uniform_cores:
        return need % layout.per_core == 0
    return adds_up(layout, layout.pinnable, need)


def adds_up(layout: CpuLayout, cpus: int, need: int) -> bool:
    """Returns True if some cores together have exactly `need` threads. Only cores count whose
    threads are all in `cpus`.

    Args:
        layout: the host.
        cpus: cpus, as bits.
        need: number of threads.
    """
    return sums_to(whole_widths(layout.core_masks, cpus), need)


def whole_widths(cores: Iterable[int], cpus: int) -> Counter[int]:
    """Returns how many cores of each width have all their threads in `cpus`."""
    return Counter(core.bit_count() for core in cores if not core & ~cpus)


def total_widths(parts: Iterable[Mapping[int, int]]) -> Counter[int]:
    """Adds up the number of cores by width over several groups of cores."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part)
    return total


def sums_to(widths: Mapping[int, int], need: int) -> bool:
    """Returns True if some of these cores together have exactly `need` threads.

    Args:
        widths: number of cores by width.
        need: number of threads.
    """
    sums = 1  # bit n is set if some of the cores have n threads together
    for width, count in widths.items():
        # The count is divided into steps of 1, 2, 4, ... cores, and a last step with the remaining
        # cores. Every number of cores up to the count is a sum of some steps.
        step = 1
        while (left := count - step + 1) > 0:
            sums |= sums << width * min(step, left)
            step *= 2
    return bool(sums >> need & 1)
