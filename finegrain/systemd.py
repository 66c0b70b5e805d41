"""Reports the state of the process to systemd by the sd_notify protocol: one datagram per message.

Without systemd, NOTIFY_SOCKET is not set, and the functions do nothing.
"""

from __future__ import annotations

import os
import socket


def notify(*lines: str) -> bool:
    """Sends lines such as "READY=1" or "WATCHDOG=1". Returns True if the lines were sent."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return False
    target = "\0" + path[1:] if path.startswith("@") else path  # "@" means the abstract namespace
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(lines).encode(), target)
    except OSError:
        # A lost notification must not stop the daemon.
        return False
    return True


def watchdog_interval_s() -> float | None:
    """Returns the seconds between two messages "WATCHDOG=1": half of the time that systemd allows;
    None: send no messages.
    """
    usec = os.environ.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        # Child processes inherit the variables, but systemd expects messages of one process only.
        return None
    # Convert microseconds to seconds, and take half of the time, as sd_watchdog_enabled(3)
    # recommends.
    return int(usec) / 2_000_000
