"""Starts the helper from the front, or finds a running one, or becomes the helper.

The front starts it before grpc is imported, because a process that uses grpc must not fork.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

from task_executor.helper.protocol import PROTOCOL_VERSION, decode, encode, frames
from task_executor.helper.scope import ScopeError, hold_scope, scope_is_available
from task_executor.helper.server import peer_uid, socket_address

_ATTEMPTS, _PAUSE_S, _ANSWER_S, _UNIT_S = 20, 0.1, 5.0, 30.0
EXIT_CONFIG, EXIT_IN_USE = 2, 3
_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(_ROOT)!r});"
    "from task_executor.helper.__main__ import main; sys.exit(main(sys.argv[1]))"
)


@dataclass(frozen=True)
class HelperConfig:
    """Configuration of the helper. Paths are absolute.

    `front_uid` may connect. Tasks run as `task_uid`/`task_gid` unless they name a number within the
    range; 0 only with `allow_root_tasks`. Without root everything runs as the helper's own user.
    `cgroup_parent`: the delegated group ("/finegrain.slice/...") if it is not our own. `front_pid`:
    moved to a leaf together with the helper on v2. `holder_pid`: the process that holds the scope
    made for the slots. `detached`: the helper continues in a fork. `kubelet_dir` None: there is no
    kubelet. `kubelet_config` None: the kubelet's command line names it.
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
    """The helper did not start; the message is its output."""


def start_helper(config: HelperConfig) -> int:
    """Returns the pid of a detached helper that answers at the socket.

    A running helper is reused if it has the same configuration, else replaced; its tasks continue.
    Raises HelperNotStarted.
    """
    config = replace(config, front_pid=config.front_pid or os.getpid())
    path, output = Path(config.socket_path), ""
    # Each attempt asks again, because another start may run at the same time, and a helper that was
    # ordered to stop still answers for a moment.
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

    Raises OSError.
    """
    state = Path(config.state_dir)
    state.mkdir(mode=0o750, parents=True, exist_ok=True)
    os.chown(state, -1, config.front_gid)  # the front must reach the tasks' logs
    config = _in_scope(replace(config, detached=False), None)
    os.execv(sys.executable, _command(config))  # noqa: S606 - no shell on purpose


def find_helper(config: HelperConfig) -> int:
    """Waits for the helper that a separate unit has started; returns its pid.

    Raises HelperNotStarted.
    """
    path, end = Path(config.socket_path), time.monotonic() + _UNIT_S
    while (hello := _call(path, "hello")) is None:
        if time.monotonic() > end:
            message = f"no helper answers at {path}; start it (finegrain executor helper)"
            raise HelperNotStarted(message)
        time.sleep(_PAUSE_S)
    if hello["executor_id"] != config.executor_id:
        message = f"{path} belongs to executor {hello['executor_id']}, not to {config.executor_id}"
        raise HelperNotStarted(f"{message}; set executor_id for both")
    if hello["protocol_version"] != PROTOCOL_VERSION:
        raise HelperNotStarted("the helper has another version; restart it: its tasks continue")
    return int(hello["pid"])


def _in_scope(config: HelperConfig, stderr: IO[bytes] | None) -> HelperConfig:
    """Returns the configuration with a scope if systemd can make one; else cgroups go elsewhere."""
    # A group that the configuration names is used as it is. Without cgroups no scope is needed.
    wanted = config.isolation != "none" and not config.cgroup_parent and config.cgroup_root == "/"
    if wanted and scope_is_available():
        try:
            pid = hold_scope(Path(config.state_dir), config.executor_id, stderr)
            return replace(config, holder_pid=pid)
        except ScopeError as error:
            os.write(stderr.fileno() if stderr else 2, f"helper: {error}\n".encode())
    return config


def digest(config: HelperConfig) -> str:
    """Returns a digest of a configuration, without what may differ between starts."""
    kept = asdict(replace(config, front_pid=None, holder_pid=None))
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _spawn(config: HelperConfig) -> str:
    """Starts a helper and waits until it answers or ends; returns its output.

    Raises HelperNotStarted if a retry is useless.
    """
    log = Path(config.state_dir) / "helper.log"
    try:
        log.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        with log.open("ab") as out:
            # The log has the output of earlier helpers too. Only what this one writes is returned.
            before, devnull = out.tell(), subprocess.DEVNULL
            command = _command(_in_scope(config, out))
            done = subprocess.run(command, stdin=devnull, stdout=out, stderr=out, check=False)
        output = log.read_bytes()[before:][-2000:].decode(errors="replace").strip()
        if not output and os.statvfs(log.parent).f_bavail == 0:  # so nothing could be logged
            output = f"state directory {log.parent}: {os.strerror(errno.ENOSPC)}"
    except OSError as error:
        raise HelperNotStarted(f"state directory {log.parent}: {error.strerror}") from None
    if done.returncode == EXIT_CONFIG:
        raise HelperNotStarted(output.removeprefix("helper: "))
    return output


def _command(config: HelperConfig) -> list[str]:
    given = json.dumps(asdict(config))
    # Isolated and without site-packages: a privileged process must load no third-party code, and
    # take nothing from the environment of its caller.
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, given]


def _call(path: Path, verb: str) -> dict[str, Any] | None:
    """Returns the result of one call without arguments; None if no helper answers."""
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
                    # Events have no id. They can come before the answer.
                    if "id" in (answer := decode(body)):
                        result: dict[str, Any] = answer["result"]
                        return result
    except OSError:
        return None
    return None
