"""Gives network ports of the configured range to slots.

The resource manager counts ports like other countable resources ("ports"). The executor chooses the
numbers when a slot is carved: only the host knows which ports other programs use.
"""

from __future__ import annotations

import errno
import socket
from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Final

from finegrain.errors import InvalidArgument, Reason, ResourceExhausted

PORT_MAX: Final = 65_535
EPHEMERAL_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
NO_PORTS: Final = "none"
TASK_PORTS_DEFAULT: Final = "20000-29999"


def read_range(text: str) -> range:
    """Returns the range of a text such as "20000-29999"; empty for "none" and for an empty text.

    Raises:
        InvalidArgument: the text is not a range of ports.
    """
    if text in ("", NO_PORTS):
        return range(0)
    first, dash, last = text.partition("-")
    numbers = [int(each) for each in (first, last) if each.isdecimal() and len(each) <= 5]
    if not dash or len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1] <= PORT_MAX:
        expected = f'FIRST-LAST within 1-{PORT_MAX}, such as 20000-29999, or "{NO_PORTS}"'
        raise InvalidArgument("task_ports", text, expected)
    return range(numbers[0], numbers[1] + 1)


def offered_ports(ports: range, file: Path = EPHEMERAL_FILE) -> Sequence[int]:
    """Returns the ports of a range, without the ports that the kernel uses for outgoing
    connections.

    The ports of the kernel are left out, because outgoing connections of other programs can use
    such a port at any time.

    Args:
        ports: the configured range.
        file: the file with the kernel's range for outgoing connections.
    """
    try:
        first, last = map(int, file.read_text("ascii").split())
    except (OSError, ValueError):
        return ports
    # An array of 16-bit numbers takes 20 KiB for 10,000 ports, and a list 360 KiB.
    return array("H", (each for each in ports if not first <= each <= last))


class NetworkPorts:
    """The ports that slots have.

    Several executors on one host can have overlapping ranges. So an executor claims each port that
    a slot has, with a socket in the kernel's abstract namespace. The kernel removes such a socket
    when the executor's process ends.

    Args:
        ports: the ports that slots can have.
        claim: a function that claims a port for this host. It returns the socket of the claim; None
            if the port is in use.
    """

    def __init__(
        self, ports: Sequence[int], claim: Callable[[int], socket.socket | None] | None = None
    ) -> None:
        self._ports = ports
        self._claim = claim or claim_port
        self._given: dict[Hashable, dict[int, socket.socket | None]] = {}
        self._used: set[int] = set()
        self._next = 0

    def of(self, owner: Hashable) -> tuple[int, ...]:
        """Returns the ports of a slot, in ascending order."""
        return tuple(sorted(self._given.get(owner, ())))

    def give(self, owner: Hashable, count: int) -> tuple[int, ...]:
        """Gives a slot more ports or takes ports away, until it has `count` ports.

        Raises:
            ResourceExhausted: not enough ports are free. The slot keeps the ports that it had.
        """
        mine = self._given.get(owner, {})
        for port in sorted(mine)[count:]:
            self._release(mine, port)
        taken: dict[int, socket.socket | None] = {}
        last = self._next
        # Begin the search after the port that was given last: a recently used port possibly still
        # has connections that are being closed.
        for offset in range(len(self._ports)):
            if len(mine) + len(taken) >= count:
                break
            at = (self._next + offset) % len(self._ports)
            port = self._ports[at]
            if port not in self._used and (claimed := self._claim(port)) is not None:
                taken[port] = claimed
                last = at
        if taken:
            self._next = (last + 1) % len(self._ports)
        if len(mine) + len(taken) < count:
            for each in taken.values():
                if each is not None:
                    each.close()
            raise ResourceExhausted(
                f"{count} network ports were requested, but only {len(mine) + len(taken)} are "
                "free: other slots and programs use the other ports of task_ports",
                reason=Reason.INSUFFICIENT_RESOURCES,
                details={"asked": count, "available": len(mine) + len(taken)},
            )
        self._used |= taken.keys()
        if mine | taken:
            self._given[owner] = mine | taken
        return self.of(owner)

    def adopt(self, owner: Hashable, ports: Iterable[int]) -> None:
        """Claims the ports of a slot again after a restart of the front."""
        # Do not check whether the ports are in use, because the tasks of the slot can use them.
        mine = {port: reserve(port) for port in ports}
        if mine:
            self._given[owner] = mine
            self._used |= mine.keys()

    def take_back(self, owner: Hashable) -> None:
        """Frees the ports of a slot that has ended."""
        mine = self._given.pop(owner, {})
        for port in [*mine]:
            self._release(mine, port)

    def close(self) -> None:
        """Ends all claims. Slots keep their ports, and the next front adopts them."""
        for owner in [*self._given]:
            self.take_back(owner)

    def _release(self, mine: dict[int, socket.socket | None], port: int) -> None:
        claimed = mine.pop(port)
        self._used.discard(port)
        if claimed is not None:
            claimed.close()


def claim_port(port: int) -> socket.socket | None:
    """Claims a port for this host. Returns None if another executor or a program uses it."""
    claimed = reserve(port)
    if claimed is not None and not is_free(port):
        claimed.close()
        return None
    return claimed


def reserve(port: int) -> socket.socket | None:
    """Returns the socket that claims a port; None if another executor has claimed the port."""
    claimed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # Abstract names belong to a network namespace, like ports.
        claimed.bind(f"\0finegrain-port-{port}")
    except OSError:
        claimed.close()
        return None
    return claimed


def is_free(port: int) -> bool:
    """Returns True if no program uses the port, for TCP or UDP, on any address."""
    for family in (socket.AF_INET6, socket.AF_INET):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as probe:
                    if family == socket.AF_INET6:
                        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    probe.bind(("", port))
            except OSError as error:
                if error.errno in _NO_FAMILY:
                    continue  # the host has no IPv6
                return False
    return True


_NO_FAMILY: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
