"""Runs a whole cluster on this host as child processes, for `finegrain up` and for tests.

This module determines the order in which daemons start and stop. When one daemon ends by itself,
the module also stops all other daemons. A stopped cluster leaves no process and no cgroup.

Tasks run as the user that `task_user.py` chooses. All files are in one directory: `rm/` (database,
certificates), `executors/ID/`, `logs/`. Only sockets are in a temporary directory, because the path
of a socket must be short.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

from finegrain.errors import ConfigurationError, FinegrainError, InvalidArgument
from finegrain.ids import check_id
from finegrain.local_managers import OPERATOR_FILE
from finegrain.options import ListenOptions, LogOptions
from finegrain_cli.local.address import previous_address, write_address
from finegrain_cli.local.daemon_process import DaemonProcess
from finegrain_cli.local.joining import join_token_file, write_join_tokens
from finegrain_cli.local.leftovers import find_leftovers
from finegrain_cli.local.lock import take_lock
from finegrain_cli.local.scale import Scale, ScaledExecutors, check_unscaled
from finegrain_cli.local.shares import ExecutorShare, divide_host
from finegrain_cli.local.stop import (
    KILL_GRACE_MS,
    POLL_INTERVAL_S,
    STOP_TIMEOUT_S,
    describe_exit,
    signals_deferred,
    sweep,
)
from finegrain_cli.local.task_user import TaskUser, choose_task_user
from resource_manager.engine.model.settings import Fairness
from resource_manager.options import ResourceManagerOptions
from task_executor.options import TaskExecutorOptions

__all__ = ["ExecutorNote", "ExecutorShare", "LocalCluster", "Scale"]

ANY_PORT = "127.0.0.1:0"
START_TIMEOUT_S = 60.0
REPORT_INTERVAL_MS = 1_000
LOST_TIMEOUT_MS = 5_000


class _Part(TypedDict):
    """The part of this host that is divided among the executors."""

    cpus: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExecutorNote:
    """Address and pid of an executor that runs."""

    executor_id: str
    address: str
    metrics_address: str
    pid: int


class LocalCluster:
    """One resource manager and some task executors on this host.

    Use an instance in `with`, or call `start` and `stop`. `start` sets `address`,
    `metrics_address`, `state_dir`, `notes` and `credentials_file` (with the role `operator`). With
    `scale`, it also sets `scaled`.

    Args:
        executors: number of executors, each with an equal part of this host. The number is not used
            if `shares` or `scale` is given.
        shares: the executors, each with an explicit part of this host.
        scale: the maximum number of executors that the resource manager starts and stops on demand.
            With `scale`, the cluster starts without executors.
        state_dir: directory of all files except sockets. It can be the directory of an earlier
            cluster. If None, the cluster uses a temporary directory.
        listen: address of the resource manager. With port 0, the kernel chooses the port.
        metrics_listen: address of the resource manager's metrics. With port 0, the kernel chooses
            the port.
        cpus: the cpus to divide. If empty, all cpus are divided.
        memory_bytes: the amount of memory to divide. If None, all memory is divided.
        isolation: "auto" or "none". With "none", no limits are enforced.
        fake_gpus: the machine whose GPUs each executor pretends to have, such as "dgx-a100". If
            empty, executors offer the real GPUs.
        task_user: the user that runs tasks. If None, `choose_task_user` chooses the user.
        fairness: settings of the order in which requests are served. If None, the defaults apply.
        revocation: True if revocable slots are taken back for requests that fit on no executor.
        revocation_grace_ms: time that the tasks of a revoked slot have to end.
        log: level and format of the daemons' logs.
        show_logs: True if the daemons must log to this process's standard error.

    Raises:
        InvalidArgument: there is no executor, or two executors have the same id.
    """

    def __init__(
        self,
        executors: int = 2,
        *,
        shares: Sequence[ExecutorShare] | None = None,
        scale: Scale | int | None = None,
        state_dir: Path | None = None,
        listen: str = ANY_PORT,
        metrics_listen: str = ANY_PORT,
        cpus: str = "",
        memory_bytes: int | None = None,
        isolation: str = "auto",
        fake_gpus: str = "",
        task_user: TaskUser | None = None,
        fairness: Fairness | None = None,
        revocation: bool = False,
        revocation_grace_ms: int = 10_000,
        log: LogOptions | None = None,
        show_logs: bool = False,
    ) -> None:
        self._scale = Scale(scale) if isinstance(scale, int) else scale
        if executors < 1 or (self._scale and self._scale.executors_max < 1):
            count = executors if self._scale is None else self._scale.executors_max
            raise InvalidArgument("executors", count, "1 or more")
        self.shares = list(shares or [])
        if len({share.executor_id for share in self.shares}) < len(self.shares):
            raise InvalidArgument("shares", self.shares, "each executor_id only once")
        for share in self.shares:
            check_id("executor_id", share.executor_id)
        self._executors_wanted = executors
        self._part: _Part = {"cpus": cpus, "memory_bytes": memory_bytes}
        self._given_state_dir = state_dir
        self._listen = ListenOptions(listen, metrics_listen)
        self._isolation = isolation
        self._fake_gpus = fake_gpus
        self.task_user = task_user or choose_task_user()
        self.fairness = fairness or Fairness()
        self._revocation, self._revocation_grace_ms = revocation, revocation_grace_ms
        self._log = log or LogOptions(format="auto" if show_logs else "json")
        self._show_logs = show_logs
        self._base: Path | None = None
        self._lock: int | None = None
        self._manager: DaemonProcess | None = None
        self._executors: list[DaemonProcess] = []
        self.state_dir = state_dir or Path()
        self.address = ""
        self.metrics_address = ""
        self.web_address = ""
        self.credentials_file = Path()
        self.notes: list[ExecutorNote] = []
        self.scaled: ScaledExecutors | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        left = self.stop()
        if left and error is None:
            raise FinegrainError("something was left behind: " + "; ".join(left))

    def start(self) -> None:
        """Starts all daemons, and waits until all executors have registered.

        Raises:
            ConfigurationError: a daemon did not start. The message has the last line of the
                daemon's log. All other daemons have been stopped.
        """
        try:
            self._prepare()
            self._start_manager()
            self._start_executors()
        except BaseException:
            # Also stop after Ctrl-C, because no started process must be left behind.
            self.stop()
            raise

    def ended(self) -> str:
        """Returns a message about a daemon that ended by itself, with the daemon's last log line.
        Returns an empty text if all daemons run.
        """
        for daemon in self._daemons():
            if not daemon.runs():
                return describe_exit(daemon)
        return self.scaled.ended() if self.scaled else ""

    def wait(self) -> None:
        """Blocks while all daemons run.

        Raises:
            FinegrainError: a daemon ended.
        """
        while not (what := self.ended()):
            time.sleep(4 * POLL_INTERVAL_S)
        raise FinegrainError(f"{what}; everything else is stopped now")

    def stop(self) -> list[str]:
        """Frees all slots, ends all processes and removes temporary files. A second call is
        allowed.

        Returns:
            One line for each process, cgroup or directory that could not be removed.
        """
        if self._base is None:
            return []
        with signals_deferred():
            # Stop the executors before the resource manager, because they send their last reports
            # to it. Signal all executors before the first wait, so that they stop at the same time.
            for executor in self._executors:
                executor.terminate()
            for executor in self._executors:
                self._end(executor)
            if self.scaled is not None:
                self.scaled.stop_executors()
            if self._manager is not None:
                self._manager.terminate()
                self._end(self._manager)
            # Sweep only now. The resource manager has ended, so it can start no executor during the
            # sweep.
            left = self.scaled.sweep() if self.scaled else []
            folders = [self.state_dir / "executors" / each.executor_id for each in self.shares]
            left += find_leftovers(self._base, self.state_dir, folders)
            shutil.rmtree(self._base, ignore_errors=True)
            if self._base.exists():
                left.append(f"directory {self._base}")
            # Release the lock last, because no other cluster must use the directory before this
            # point.
            if self._lock is not None:
                os.close(self._lock)
        self._lock = None
        self._base, self._manager, self._executors, self.scaled = None, None, [], None
        return left

    # -- start ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        # TMPDIR is possibly a directory that only this user can enter.
        place = None if self.task_user.is_shared else "/tmp"  # noqa: S108 - mkdtemp is safe there
        self._base = Path(tempfile.mkdtemp(prefix="finegrain-", dir=place))
        self.state_dir = (self._given_state_dir or self._base / "state").absolute()
        try:
            self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.state_dir / "logs").mkdir(mode=0o700, exist_ok=True)
            for name in ("run", "scratch"):
                (self._base / name).mkdir(mode=0o700)
            if not self.task_user.is_shared:
                # Each task has a directory in `scratch`, which its user must be able to enter.
                for path in (self._base, self._base / "scratch"):
                    path.chmod(0o711)
        except OSError as error:
            raise ConfigurationError(
                f"the state directory {self.state_dir} cannot be used: {error.strerror}; name "
                "another one with --state-dir",
                details={"state_dir": self.state_dir},
            ) from None
        # Take the lock before any change of a file, because another cluster possibly uses the
        # directory.
        self._lock = take_lock(self.state_dir)
        if self._scale is not None:
            self.scaled = ScaledExecutors(
                self._scale,
                self.state_dir,
                isolation=self._isolation,
                task_user=self.task_user,
                **self._part,
            )
            self.scaled.prepare()
        else:
            check_unscaled(self.state_dir)
            self.shares = self.shares or _equal_shares(
                self.state_dir, self._executors_wanted, **self._part
            )
        self.credentials_file = self.state_dir / "rm" / OPERATOR_FILE

    def _start_manager(self) -> None:
        options = ResourceManagerOptions(
            state_dir=self.state_dir / "rm",
            listen=previous_address(self.state_dir, self._listen),
            join_listen=ANY_PORT,
            web_listen=ANY_PORT,
            log=self._log,
            report_interval_ms=REPORT_INTERVAL_MS,
            lost_timeout_ms=LOST_TIMEOUT_MS,
            providers_file=self.scaled.providers_file if self.scaled else None,
            fairness=self.fairness,
            revocation=self._revocation,
            revocation_grace_ms=self._revocation_grace_ms,
        )
        if self.scaled is not None:
            assert self._lock is not None  # noqa: S101 - _prepare has run
            # Start the sweeper before the resource manager, because the resource manager possibly
            # starts executors at once.
            self.scaled.start_sweeper(self._lock)
        self._manager = manager = self._daemon("resource manager", "rm", options)
        manager.start()
        self._await(manager, lambda: manager.endpoint() is not None)
        note = manager.endpoint() or {}
        self.address = str(note["address"])
        # Save the address, so that the next cluster in this directory listens at the same port.
        write_address(self.state_dir, self.address)
        self.metrics_address = str(note.get("metrics_address") or "")
        self.web_address = str(note.get("web_address") or "")

    def _start_executors(self) -> None:
        write_join_tokens(
            self.state_dir,
            [share.executor_id for share in self.shares],
            self.address,
            self.credentials_file,
        )
        for share in self.shares:
            options = self._executor_options(share)
            name = f"executor {share.executor_id}"
            self._executors.append(self._daemon(name, share.executor_id, options))
        # Start all executors before the first wait, so that they start in parallel.
        for executor in self._executors:
            executor.start()
        for share, executor in zip(self.shares, self._executors, strict=True):
            self._await(executor, partial(_registered, executor))
            note = executor.endpoint() or {}
            self.notes.append(
                ExecutorNote(
                    share.executor_id,
                    str(note.get("address", "")),
                    str(note.get("metrics_address", "")),
                    executor.pid,
                )
            )

    def _executor_options(self, share: ExecutorShare) -> TaskExecutorOptions:
        assert self._base is not None  # noqa: S101 - _prepare has run
        return TaskExecutorOptions(
            state_dir=self.state_dir / "executors" / share.executor_id,
            run_dir=self._base / "run",
            managers=(self.address,),
            executor_id=share.executor_id,
            listen=ListenOptions(ANY_PORT, ANY_PORT),
            join_token_file=join_token_file(self.state_dir, share.executor_id),
            log=self._log,
            labels=share.labels,
            cpus=share.cpus,
            cpu_milli=share.cpu_milli,
            memory_bytes=share.memory_bytes,
            isolation=self._isolation,
            fake_gpus=self._fake_gpus,
            task_user=self.task_user.name,
            allow_root_tasks=self.task_user.allow_root,
            task_kill_grace_ms=KILL_GRACE_MS,
            stop_tasks_on_exit=True,
        )

    def _daemon(
        self, name: str, log: str, options: ResourceManagerOptions | TaskExecutorOptions
    ) -> DaemonProcess:
        assert self._base is not None  # noqa: S101 - _prepare has run
        return DaemonProcess(
            name,
            options,
            self.state_dir / "logs" / f"{log}.log",
            temporary_dir=self._base / "scratch",
            show_log=self._show_logs,
        )

    def _await(self, daemon: DaemonProcess, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            if what := self.ended():
                raise ConfigurationError(what)
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the {daemon.name} was not ready after {START_TIMEOUT_S:.0f} s; its last "
                    f"output: {daemon.last_words() or 'nothing'}"
                )
            time.sleep(POLL_INTERVAL_S)

    # -- stop ----------------------------------------------------------------------------------

    def _daemons(self) -> Iterator[DaemonProcess]:
        """Yields the daemons that have been started."""
        if self._manager is not None and self._manager.pid:
            yield self._manager
        yield from (executor for executor in self._executors if executor.pid)

    def _end(self, daemon: DaemonProcess) -> None:
        """Waits for the end of a daemon that has received SIGTERM. Kills the daemon after the
        timeout.

        If the daemon is an executor that did not stop cleanly, `sweep` frees its slots.
        """
        if not daemon.pid:
            return
        if not daemon.wait(KILL_GRACE_MS / 1000 + STOP_TIMEOUT_S):
            daemon.kill()
            daemon.wait(STOP_TIMEOUT_S)
        if daemon in self._executors and daemon.exit_code() != 0:
            sweep(daemon)


def _equal_shares(
    state_dir: Path, executors: int, *, cpus: str, memory_bytes: int | None
) -> list[ExecutorShare]:
    """Returns equal parts of this host.

    The executors' names contain a hash of the path of the state directory. So the names are unique
    on this host, as names of control groups must be. The names stay the same when the directory is
    used again.
    """
    mark = hashlib.sha256(os.fsencode(state_dir)).hexdigest()[:6]
    names = [f"local-{mark}-{number}" for number in range(1, executors + 1)]
    return divide_host(names, cpus=cpus, memory_bytes=memory_bytes)


def _registered(executor: DaemonProcess) -> bool:
    """Returns True if the executor serves, and the resource manager knows the executor."""
    note = executor.endpoint()
    if note is None:
        return False
    try:
        with urllib.request.urlopen(
            f"http://{note['metrics_address']}/readyz", timeout=5
        ) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
