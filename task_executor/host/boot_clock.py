"""Reads the boot clock: the time since the boot of the host, including times of suspension.

All processes of the host read the same time, so a time of this clock can be stored. Such a time is
valid until the host is started again.
"""

from __future__ import annotations

import time


def boot_seconds() -> float:
    """Returns the time of the boot clock in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_ms() -> int:
    """Returns the time of the boot clock in milliseconds."""
    return round(boot_seconds() * 1000)
