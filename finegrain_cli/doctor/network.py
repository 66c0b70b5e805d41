"""Checks whether the ports of the daemons are free, and whether a resource manager answers."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError, Unavailable
from finegrain_cli.doctor.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from finegrain_cli.config.model import Settings

LISTENING = "0A"
NO_PORT = "none"
PATIENCE_S = 2.0
OUR_MODULES = (["finegrain_cli"], ["finegrain_cli.local.daemon_process"])


def examine_ports(settings: Settings) -> Iterator[Finding]:
    """Checks each address at which a daemon would listen."""
    from finegrain_cli.config.daemon_options import executor_state_dir, rm_state_dir

    rm = _daemon_uids(rm_state_dir(settings.rm))
    executor = _daemon_uids(executor_state_dir(settings.executor))
    for key, address in (
        ("rm.listen", settings.rm.listen),
        ("rm.metrics_listen", settings.rm.metrics_listen),
        ("rm.join_listen", settings.rm.join_listen),
        ("rm.web_listen", settings.rm.web_listen),
        ("executor.listen", settings.executor.listen),
        ("executor.metrics_listen", settings.executor.metrics_listen),
    ):
        if address and address != NO_PORT:
            yield _port(key, address, rm if key.startswith("rm.") else executor)


def examine_manager(*, named: bool) -> Iterator[Finding]:
    """Checks whether a resource manager answers.

    Args:
        named: True if the user gave the resource manager's address. If so, a missing answer is a
            failure. Otherwise, a missing answer is a warning.
    """
    from finegrain_cli.common import HINTS
    from finegrain_cli.connection import open_cluster, resolve_target

    try:
        target = resolve_target()
    except FinegrainError as error:
        grade = fail if named else warn
        fix = HINTS.get(error.reason, "see the message")
        yield grade("resource manager", error.message, fix)
        return
    where = ", ".join(target.addresses)
    try:
        with open_cluster(budget_s=PATIENCE_S) as cluster:
            info = cluster.info()
    except Unavailable as error:
        fix = "start one: finegrain rm serve (or, for a test: finegrain up)"
        grade = fail if named else warn
        yield grade("resource manager", f"no answer at {where}: {error.message}", fix)
    except FinegrainError as error:
        yield fail("resource manager", error.message, HINTS.get(error.reason, "see the message"))
    else:
        executors = sum(info.executors.values())
        message = f"answers at {where}: epoch {info.rm_epoch}, {executors} executors"
        yield ok("resource manager", message)


def _port(key: str, address: str, daemon_uids: set[int]) -> Finding:
    from finegrain.rpc.addresses import parse_address

    host, port = parse_address(address, key)
    if port == 0:
        return ok(key, f"{address}: any free port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Without this option, old connections in TIME_WAIT would make the port look busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return _bind_failed(key, address, port, error, daemon_uids)
    return ok(key, f"{address} is free")


def _bind_failed(
    key: str, address: str, port: int, error: OSError, daemon_uids: set[int]
) -> Finding:
    if error.errno == errno.EACCES:
        return fail(key, f"{address}: ports below 1024 are root's", f"set {key} to a higher port")
    if error.errno != errno.EADDRINUSE:
        fix = f"set {key} to an address of this host"
        return fail(key, f"{address}: {error.strerror or error}", fix)
    owner = _owner(port)
    if owner and _is_ours(owner[1]) and _uid(owner[0]) in daemon_uids:
        return ok(key, f"{address}: in use by finegrain itself (pid {owner[0]})")
    # Another process on the port is no security problem: without a key of the cluster, the process
    # cannot impersonate a daemon. But the daemon cannot start while the process uses the port.
    whose = (
        f"process {owner[0]} ({' '.join(owner[1])[:120]}) of {_user(owner[0])}, which is no daemon "
        "of finegrain"
        if owner
        else "another process (of another user; root can see which)"
    )
    stop = f"stop it (kill {owner[0]})" if owner else "stop it"
    return fail(key, f"{address} is in use by {whose}", f"{stop}, or set {key} to another port")


def _uid(pid: int) -> int | None:
    """Returns the user of a process, or None if the process has ended."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _user(pid: int) -> str:
    uid = _uid(pid)
    try:
        return "an unknown user" if uid is None else f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def _daemon_uids(state_dir: Path) -> set[int]:
    """Returns the ids of the users that could run a daemon with this state directory.

    Callers check the command line and the user of a process. The command line alone is not enough:
    any user can start a process with the command line of a daemon.
    """
    try:
        return {0, os.geteuid(), state_dir.stat().st_uid}
    except OSError:
        return {0, os.geteuid()}


def _is_ours(words: list[str]) -> bool:
    module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
    script = [Path(word).name for word in words[:2]]
    return "finegrain" in script or module in OUR_MODULES


def _owner(port: int) -> tuple[int, list[str]] | None:
    """Returns the pid and the command line of the process that listens at a port. Returns None if
    this user cannot see the process.
    """
    inodes = {inode for table in ("tcp", "tcp6") for inode in _listening(table, port)}
    # /proc/net/tcp has the inode of each socket, and /proc/PID/fd links to "socket:[INODE]".
    marks = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _has_open(process, marks):
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            return int(process.name), line.rstrip("\0").split("\0")
    return None


def _listening(table: str, port: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _has_open(process: Path, marks: set[str]) -> bool:
    with contextlib.suppress(OSError):
        return any(str(each.readlink()) in marks for each in (process / "fd").iterdir())
    return False
