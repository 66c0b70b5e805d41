"""How long each cpu of the host was busy, by /proc/stat.

Decides which of its columns are work. Refuses to know whose work it was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_BUSY: Final = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal; guests are in the first two. Idle and waiting for
disks are not."""


def busy_usec(root: Path = Path("/")) -> dict[int, int]:
    """Microseconds since the boot by cpu; cpus that do not run are left out, and nothing is known
    if the file cannot be read. Counted in hundredths of a second, so it is good for a second or
    more.
    """
    usec_per_tick = 1_000_000 // os.sysconf("SC_CLK_TCK")
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        name, *columns = line.split()[:9] or [""]
        number = name.removeprefix("cpu")
        if number != name and number.isdecimal() and len(columns) == 8:
            found[int(number)] = sum(int(columns[at]) for at in _BUSY) * usec_per_tick
    return found
