"""A network that can really be cut: every node has a network namespace, and all meet at a router.

The router is the namespace of the run itself (`in_own_network`), so the run reaches every node even
if two of them are cut off from each other. A cut is a blackhole rule at the router: packets vanish
silently, in one direction or both, as behind a broken switch; connections stay open and stall. A
slow line is a token bucket at the router's end: packets queue for seconds, the rest is lost.

Nothing outlives the run: a namespace ends with the processes in it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.daemons import Place

MARK = "FINEGRAIN_CHAOS_NETWORK"
PR_SET_PDEATHSIG = 1
PREFIX = "198.51.100"  # reserved for documentation (RFC 5737), so not in use
NODES_MAX = 60
SLOW = ("tbf", "rate", "48kbit", "burst", "3000", "latency", "1500ms")


def in_own_network() -> bool:
    """Returns whether this process is already the router."""
    return os.environ.get(MARK) == "inside"


def enter_own_network(module: str, arguments: Sequence[str]) -> None:
    """Restarts this program as the router of a separate network; does not return."""
    os.environ[MARK] = "inside"
    command = ["unshare", "-n", sys.executable, "-m", module, *arguments]
    os.execvp(command[0], command)


def _end_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """Nodes by name; `close` removes them."""

    def __init__(self) -> None:
        _ip("link", "set", "lo", "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._hosts: dict[str, str] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._slow: set[str] = set()

    def node(self, name: str) -> Place:
        """Returns the place of a node, which is created if it does not exist."""
        if name not in self._hosts:
            self._add(name)
        return Place(self._hosts[name], ("nsenter", "-t", str(self._holders[name].pid), "-n"))

    def _add(self, name: str) -> None:
        number = len(self._hosts)
        if number >= NODES_MAX:
            raise ValueError(f"{NODES_MAX} nodes at most")
        router, host = f"{PREFIX}.{4 * number + 1}", f"{PREFIX}.{4 * number + 2}"
        script = (
            "ip link set lo up; while ! ip link show inner >/dev/null 2>&1; do sleep 0.02; done;"
            f"ip addr add {host}/30 dev inner; ip link set inner up;"
            f"ip route add default via {router}; echo up; exec sleep 100000"
        )
        # unshare becomes the shell, which becomes sleep: one process, which ends with this one.
        holder = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", script],
            stdout=subprocess.PIPE,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  no threads that hold locks here
        )
        self._holders[name] = holder
        outer = f"fg{number}"
        _ip("link", "add", outer, "type", "veth", "peer", "name", f"{outer}i")
        _ip("addr", "add", f"{router}/30", "dev", outer)
        _ip("link", "set", outer, "up")
        self._into(f"{outer}i", holder.pid)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"up\n":
            raise RuntimeError(f"node {name} did not come up")
        self._hosts[name] = host

    def _into(self, link: str, pid: int) -> None:
        # The link can move only after `unshare` has created the namespace.
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{pid}/ns/net").readlink() == own:
            pass
        _ip("link", "set", link, "netns", str(pid), "name", "inner")

    def cut(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Drops packets from source to target, and back unless `one_way`."""
        pairs = [(source, target)] if one_way else [(source, target), (target, source)]
        for pair in pairs:
            if pair not in self._cuts:
                self._rule("add", pair)
                self._cuts.add(pair)

    def mend(self, source: str, target: str) -> None:
        """Restores both directions."""
        for pair in ((source, target), (target, source)):
            if pair in self._cuts:
                self._rule("del", pair)
                self._cuts.discard(pair)

    def slow(self, name: str) -> None:
        """Narrows the line towards a node: packets are late, and some are lost."""
        if name not in self._slow:
            self._qdisc("add", name, *SLOW)
            self._slow.add(name)

    def fast(self, name: str) -> None:
        """Restores the line towards a node."""
        if name in self._slow:
            self._qdisc("del", name)
            self._slow.discard(name)

    def heal(self) -> None:
        """Restores all lines."""
        for source, target in list(self._cuts):
            self.mend(source, target)
        for name in list(self._slow):
            self.fast(name)

    def close(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()
            if holder.stdout is not None:
                holder.stdout.close()

    def _rule(self, what: str, pair: tuple[str, str]) -> None:
        source, target = (self._hosts[each] for each in pair)
        # Priority 100 is before the table `local`, and only forwarded packets match.
        _ip("rule", what, "from", source, "to", target, "priority", "100", "blackhole")

    def _qdisc(self, what: str, name: str, *words: str) -> None:
        number = list(self._hosts).index(name)
        command = ["tc", "qdisc", what, "dev", f"fg{number}", "root", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
