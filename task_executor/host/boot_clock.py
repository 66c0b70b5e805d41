"""Reads the boot clock: monotonic since the boot of the host, and also while it is suspended.

All processes of the host read the same time, so a time of this clock can be stored. It is valid
until the host is started again.
"""

from __future__ import annotations

import time


def boot_seconds() -> float:
    """Returns the time of the boot clock in seconds."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_ms() -> int:
    """Returns the time of the boot clock in milliseconds."""
    return round(boot_seconds() * 1000)
