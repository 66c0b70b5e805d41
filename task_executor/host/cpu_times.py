"""Reads how long each cpu of the host was busy, from /proc/stat."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_BUSY: Final = (0, 1, 2, 5, 6, 7)
"""Columns that count as busy: user, nice, system, irq, softirq and steal. User and nice include the
time of guests. Idle and iowait do not count.
"""


def busy_usec(root: Path = Path("/")) -> dict[int, int]:
    """Returns the busy time of each online cpu, in microseconds since boot.

    The kernel counts in hundredths of a second, so intervals should be a second or longer. The
    result is empty if the file cannot be read.
    """
    usec_per_tick = 1_000_000 // os.sysconf("SC_CLK_TCK")
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        # Cut off columns 9 and 10 (the time of guests): the columns user and nice include it.
        name, *columns = line.split()[:9] or [""]
        number = name.removeprefix("cpu")
        if number != name and number.isdecimal() and len(columns) == 8:
            found[int(number)] = sum(int(columns[at]) for at in _BUSY) * usec_per_tick
    return found
