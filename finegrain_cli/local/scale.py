"""Prepares the executors that the resource manager of a local cluster starts and stops on demand
(`--scale`).

This module divides the host among these executors, and writes the file of the providers. It also
ensures that no executor continues after the end of the cluster. `finegrain up` stops the executors
at its end. If `finegrain up` is killed, the sweeper stops the executors.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from finegrain.errors import ConfigurationError
from finegrain.resources import CPU_MILLI, MEMORY_BYTES, PORTS
from finegrain_cli.local.leftovers import groups_of
from finegrain_cli.local.shares import cpu_milli_of, equal_parts
from finegrain_cli.local.stop import KILL_GRACE_MS, STOP_TIMEOUT_S
from finegrain_cli.local.task_user import TaskUser, choose_task_user

# Import these modules at the start of this process. A user could install another version of
# finegrain before this process stops the executors.
from resource_manager.providers.process_executor import ExecutorDirectory, executor_paths
from resource_manager.providers.process_sweep import stop_everything
from task_executor.host.network_ports import TASK_PORTS_DEFAULT, offered_ports, read_range

FOLDER = "provided"
PROVIDERS_FILE = "providers.toml"
SOCKET_PATH_MAX = 107
SOCKET_NAME = "run/helper-0123456789ab.sock"
LOOK_INTERVAL_MS = 1_000
LOST_TIMEOUT_MS = 10_000
IDLE_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Scale:
    """The settings of a local cluster that starts and stops executors on demand.

    `executors_max` is the maximum number of executors at a time. `idle_timeout_ms` is the time
    after which an executor without slots is stopped.
    """

    executors_max: int
    idle_timeout_ms: int = IDLE_TIMEOUT_MS


def check_unscaled(state_dir: Path) -> None:
    """Checks that a cluster without `--scale` can use a state directory.

    Raises:
        ConfigurationError: the directory was used with `--scale`, and possibly has executors that
            only a cluster with `--scale` can manage.
    """
    if (state_dir / PROVIDERS_FILE).exists():
        raise ConfigurationError(
            f"the state directory {state_dir} was used with --scale, and executors that were "
            "started then may still run; use --scale again, or another --state-dir",
            details={"state_dir": state_dir},
        )


class ScaledExecutors:
    """All executors that the resource manager of one local cluster can start.

    Args:
        scale: the maximum number of executors, and the time after which an idle executor is
            stopped.
        state_dir: state directory of the cluster. Executors that already run in this directory are
            adopted.
        cpus: the cpus to divide. If empty, all cpus are divided.
        memory_bytes: the amount of memory to divide. If None, all memory is divided.
        isolation: "auto" or "none". With "none", no limits are enforced.
        task_user: the user that runs tasks. If None, `choose_task_user` chooses the user.
    """

    def __init__(
        self,
        scale: Scale,
        state_dir: Path,
        *,
        task_user: TaskUser | None = None,
        cpus: str = "",
        memory_bytes: int | None = None,
        isolation: str = "auto",
    ) -> None:
        self.scale = scale
        self.directory = state_dir / FOLDER
        self.providers_file = state_dir / PROVIDERS_FILE
        self._rm_state_dir = state_dir / "rm"
        self.shape = f"local-{hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:6]}"
        names = [f"{self.shape}-{number}" for number in range(1, scale.executors_max + 1)]
        self.shares = equal_parts(names, cpus=cpus, memory_bytes=memory_bytes)
        self._isolation = isolation
        self._task_user = task_user or choose_task_user()
        self._sweeper: subprocess.Popen[str] | None = None

    @property
    def total(self) -> dict[str, int]:
        """The amounts that each executor has."""
        share = self.shares[0]
        return {CPU_MILLI: cpu_milli_of(share), MEMORY_BYTES: share.memory_bytes or 0}

    def prepare(self) -> None:
        """Writes the providers' file.

        Raises:
            ConfigurationError: the path of the state directory is too long for the sockets in it.
        """
        too_long = len(os.fsencode(self.directory / SOCKET_NAME)) - SOCKET_PATH_MAX
        if too_long > 0:
            raise ConfigurationError(
                f"the path of the state directory {self.directory.parent} is {too_long} bytes too "
                "long for the sockets in it; name a shorter one with --state-dir",
                details={"state_dir": self.directory.parent},
            )
        self.directory.mkdir(mode=0o700, exist_ok=True)
        self.providers_file.write_text(self._providers(), encoding="utf-8")

    def start_sweeper(self, lock: int) -> None:
        """Starts the sweeper, which stops the executors if this process is killed.

        Args:
            lock: descriptor of the state directory's lock. The sweeper inherits the lock, and keeps
                the lock until all executors have ended.
        """
        self._sweeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "finegrain_cli.local.sweeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(lock,),
            text=True,
        )
        assert self._sweeper.stdin is not None  # noqa: S101 - it was asked for above
        note = {"directory": str(self.directory), "rm_state_dir": str(self._rm_state_dir)}
        self._sweeper.stdin.write(json.dumps(note) + "\n")
        self._sweeper.stdin.flush()

    def ended(self) -> str:
        """Returns a message if the sweeper has ended too early, or an empty text if the sweeper
        runs.
        """
        if self._sweeper is None or self._sweeper.poll() is None:
            return ""
        return f"the sweeper of executors ended with exit code {self._sweeper.returncode}"

    def stop_executors(self) -> None:
        """Stops all executors in an orderly way.

        The resource manager must still run, because the executors send their last reports to it.
        """
        fronts = [
            front
            for path in executor_paths(self.directory)
            if (front := ExecutorDirectory(self.directory, path.name, (), {}).front())
        ]
        for front in fronts:
            front.signal(signal.SIGTERM)
        deadline = time.monotonic() + KILL_GRACE_MS / 1000 + STOP_TIMEOUT_S
        for front in fronts:
            front.wait(deadline - time.monotonic())

    def sweep(self) -> list[str]:
        """Ends all remaining processes of executors, after the resource manager has ended.

        Returns:
            One line for each process or cgroup that could not be removed.
        """
        # Read the groups before the sweep, because the sweep can remove the files that list the
        # groups.
        groups = [
            group for path in executor_paths(self.directory) for group in groups_of(path / "state")
        ]
        left = stop_everything(self.directory)
        left += [f"cgroup {group}" for group in groups if Path(group).exists()]
        if self._sweeper is not None:
            self._sweeper.kill()  # the sweeper has nothing left to stop
            self._sweeper.communicate()
            self._sweeper = None
        return left

    def _providers(self) -> str:
        def text(value: str) -> str:
            return json.dumps(value, ensure_ascii=False)

        # Write the totals explicitly, because they also contain the ports that each executor
        # offers.
        ports = len(offered_ports(read_range(TASK_PORTS_DEFAULT)))
        amounts = f'cpu = "{self.total[CPU_MILLI]}m", memory = "{self.total[MEMORY_BYTES]}"'
        lines = [
            f'look_interval = "{LOOK_INTERVAL_MS}ms"',
            "[limits]",
            f'idle_timeout = "{self.scale.idle_timeout_ms}ms"',
            f'lost_timeout = "{LOST_TIMEOUT_MS}ms"',
            "[process]",
            f"directory = {text(str(self.directory))}",
            "[process.executor]",
            f"task_user = {text(self._task_user.name)}",
            f"allow_root_tasks = {str(self._task_user.allow_root).lower()}",
            f"isolation = {text(self._isolation)}",
            f'task_kill_grace = "{KILL_GRACE_MS}ms"',
            "[[shape]]",
            f"name = {text(self.shape)}",
            'provider = "process"',
            f"total = {{ {amounts}, extended = {{ {PORTS} = {ports} }} }}",
        ]
        for share in self.shares:
            lines += ["[[shape.process.share]]", f"cpus = {text(share.cpus)}"]
            lines += [f'cpu = "{share.cpu_milli}m"'] if share.cpu_milli is not None else []
            lines += [f'memory = "{share.memory_bytes}"']
        return "\n".join(lines) + "\n"
