"""Starts the helper from the front, finds a running helper, or replaces this process with the
helper.

A process that uses grpc must not fork. So the front must start the helper before it imports grpc.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

from task_executor.helper.protocol import (
    EXIT_CONFIG,
    PROTOCOL_VERSION,
    config_digest,
    decode,
    encode,
    frames,
)
from task_executor.helper.scope import ScopeError, hold_scope, scope_is_available
from task_executor.helper.server import peer_uid, socket_address

_ATTEMPTS, _PAUSE_S, _ANSWER_S, _UNIT_S = 20, 0.1, 5.0, 30.0
_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r});"
    "from task_executor.helper.__main__ import main; sys.exit(main(sys.argv[1]))"
)


@dataclass(frozen=True)
class HelperConfig:
    """Configuration of the helper. All paths are absolute.

    If the helper does not run as root, all tasks run as the helper's user.

    Attributes:
        state_dir: the directory of the helper's records.
        socket_path: the socket at which the helper answers.
        executor_id: the id of the executor that the helper belongs to.
        front_uid: the user that can connect to the socket.
        front_gid: the group that can read the logs of tasks.
        cgroup_root: the root of the cgroup tree, for tests.
        cgroup_parent: the delegated group ("/finegrain.slice/..."); None: the helper's own group.
        front_pid: the process of the front. On cgroup v2, the helper moves this process to a leaf
            group, together with itself.
        isolation: "auto" or "none".
        task_uid: the user of tasks that name no user.
        task_gid: the group of this user.
        task_uid_min: the lowest number of a user that a task can name.
        task_uid_max: the highest number of a user that a task can name.
        allow_root_tasks: True if a task can name user 0.
        scratch_root: the directory of scratch directories; None: the temporary directory.
        holder_pid: the process that holds the systemd scope of the slots, if there is a scope.
        detached: True if the helper continues in a fork.
        kubelet_dir: the kubelet's directory; None if the host has no kubelet.
        kubelet_config: the kubelet's configuration file; None if its command line names the file.
    """

    state_dir: str
    socket_path: str
    executor_id: str
    front_uid: int
    front_gid: int
    cgroup_root: str = "/"
    cgroup_parent: str | None = None
    front_pid: int | None = None
    isolation: str = "auto"
    task_uid: int = 65534
    task_gid: int = 65534
    task_uid_min: int = 1
    task_uid_max: int = 0
    allow_root_tasks: bool = False
    scratch_root: str | None = None
    holder_pid: int | None = None
    detached: bool = True
    kubelet_dir: str | None = None
    kubelet_config: str | None = None


class HelperNotStarted(RuntimeError):
    """The helper did not start. The message is the output of the helper."""


def start_helper(config: HelperConfig) -> int:
    """Finds a running helper or starts a detached one. Returns its pid when the helper answers at
    the socket.

    If a helper with the same configuration runs, the function uses this helper. The function
    replaces a helper that has another configuration; the tasks of the replaced helper continue.

    Raises:
        HelperNotStarted: no helper answers, or the socket belongs to another executor or user.
    """
    config = replace(config, front_pid=config.front_pid or os.getpid())
    path, output = Path(config.socket_path), ""
    # Call the helper again in each attempt. Another process possibly starts a helper at the same
    # time. And a helper that was ordered to stop still answers for a moment.
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        if (hello := _call(path, "hello")) is None:
            output = _spawn(config)
        elif hello["executor_id"] != config.executor_id:
            raise HelperNotStarted(f"{path} belongs to executor {hello['executor_id']}")
        elif hello["protocol_version"] == PROTOCOL_VERSION and hello["config"] == digest(config):
            return int(hello["pid"])
        else:
            _call(path, "stop")
    raise HelperNotStarted(f"helper does not answer at {path}: {output}")


def become_helper(config: HelperConfig) -> NoReturn:
    """Replaces this process with the helper, which notifies systemd when it answers.

    Raises:
        OSError: a directory cannot be made, or the helper cannot be executed.
    """
    state = Path(config.state_dir)
    state.mkdir(mode=0o750, parents=True, exist_ok=True)
    os.chown(state, -1, config.front_gid)  # the front must be able to read the logs of tasks
    config = _in_scope(replace(config, detached=False), None)
    os.execv(sys.executable, _command(config))  # noqa: S606 - no shell on purpose


def find_helper(config: HelperConfig) -> int:
    """Waits until the helper of a separate unit answers, and returns its pid.

    Raises:
        HelperNotStarted: no helper answers, or the helper belongs to another executor or has
            another version.
    """
    path, end = Path(config.socket_path), time.monotonic() + _UNIT_S
    while (hello := _call(path, "hello")) is None:
        if time.monotonic() > end:
            message = f"no helper answers at {path}; start the helper (finegrain executor helper)"
            raise HelperNotStarted(message)
        time.sleep(_PAUSE_S)
    if hello["executor_id"] != config.executor_id:
        message = f"{path} belongs to executor {hello['executor_id']}, not to {config.executor_id}"
        raise HelperNotStarted(f"{message}; set executor_id for both")
    if hello["protocol_version"] != PROTOCOL_VERSION:
        raise HelperNotStarted("the helper has another version; restart it (its tasks continue)")
    return int(hello["pid"])


def _in_scope(config: HelperConfig, stderr: IO[bytes] | None) -> HelperConfig:
    """Returns the configuration, with a systemd scope for the slots if systemd can make one."""
    # No scope is needed without cgroups, or if the configuration names a group for the slots.
    wanted = config.isolation != "none" and not config.cgroup_parent and config.cgroup_root == "/"
    if wanted and scope_is_available():
        try:
            pid = hold_scope(Path(config.state_dir), config.executor_id, stderr)
            return replace(config, holder_pid=pid)
        except ScopeError as error:
            os.write(stderr.fileno() if stderr else 2, f"helper: {error}\n".encode())
    return config


def digest(config: HelperConfig) -> str:
    """Returns a digest of a configuration, without values that can differ between starts."""
    return config_digest(asdict(config))


def _spawn(config: HelperConfig) -> str:
    """Starts a helper, waits until it answers or ends, and returns its output.

    Raises:
        HelperNotStarted: the helper cannot start, and a retry would not help.
    """
    log = Path(config.state_dir) / "helper.log"
    try:
        log.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with log.open("ab") as out:
            # The log also contains the output of earlier helpers, but return only the output of
            # this helper.
            before, devnull = out.tell(), subprocess.DEVNULL
            command = _command(_in_scope(config, out))
            done = subprocess.run(command, stdin=devnull, stdout=out, stderr=out, check=False)
        output = log.read_bytes()[before:][-2000:].decode(errors="replace").strip()
        if not output and os.statvfs(log.parent).f_bavail == 0:  # the disk is full
            output = f"state directory {log.parent}: {os.strerror(errno.ENOSPC)}"
    except OSError as error:
        raise HelperNotStarted(f"state directory {log.parent}: {error.strerror}") from None
    if done.returncode == EXIT_CONFIG:
        raise HelperNotStarted(output.removeprefix("helper: "))
    return output


def _command(config: HelperConfig) -> list[str]:
    given = json.dumps(asdict(config))
    # Run Python isolated and without site-packages. A privileged process must not load third-party
    # code, and must not use the environment of its caller.
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, given]


def _call(path: Path, verb: str) -> dict[str, Any] | None:
    """Returns the result of one call without arguments; None if no helper answers.

    Raises:
        HelperNotStarted: the socket belongs to another user.
    """
    try:
        with socket.socket(socket.AF_UNIX) as peer, socket_address(path) as address:
            peer.settimeout(_ANSWER_S)
            peer.connect(address)
            # A process of another user at this path would receive every task.
            if (uid := peer_uid(peer)) not in (0, os.geteuid()):
                raise HelperNotStarted(f"{path} belongs to another user (uid {uid}); remove it")
            peer.sendall(encode({"id": 1, "verb": verb, "args": {}}))
            inbox = bytearray()
            while data := peer.recv(1 << 16):
                inbox += data
                for body in frames(inbox):
                    # Events, which have no id, can come before the answer.
                    if "id" in (answer := decode(body)):
                        result: dict[str, Any] = answer["result"]
                        return result
    except OSError:
        return None
    return None
