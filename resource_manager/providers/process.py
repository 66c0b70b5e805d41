"""The process provider: runs executors on this host, each with a separate share of the host.

This module gives a share to each executor and writes the executor's configuration. All records are
on disk (see `process_executor`). A resource manager that starts after a crash reads these records,
and so finds every executor again. Executors continue to run when the resource manager stops.

If a resource manager is never started again, the executors of its process provider continue to run.
To stop all these executors, call `stop_everything(directory)`, or run

    python -m resource_manager.providers.process_sweep DIRECTORY

The directory is `[process] directory` of the providers' file, by default `provided/process` in the
resource manager's state directory. The command works without a resource manager, and can be
repeated.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrain.config_table import ConfigTable
from finegrain.errors import ConfigurationError
from finegrain.logs import get_logger
from finegrain.resources import EXTENDED_PREFIX, PORTS
from resource_manager.providers.process_executor import (
    Claim,
    ExecutorDirectory,
    executor_paths,
    read_claim,
)
from resource_manager.providers.process_shares import Share, missing_here, overlap, read_shares
from resource_manager.providers.process_tree import fronts_below
from resource_manager.providers.provider import (
    PROVIDED_AS_VARIABLE,
    ConfiguredShape,
    Observation,
    Presence,
    ProviderContext,
    ProviderFailed,
    ReadShape,
    Started,
)
from resource_manager.providers.threads import Cancellation, in_thread

FOLDER = "provided/process"
STOP_TIMEOUT_MS = 45_000
CALLS_MAX = 16
CLAIM_WAIT_S = 20.0
CLAIM_PAUSE_S = 0.01
THIS_PROGRAM = (sys.executable, "-P", "-m", "finegrain_cli")
OURS = frozenset(
    {"executor_id", "state_dir", "run_dir", "manager", "join_token_file", "cpus", "cpu"}
    | {"memory", "extended", "labels", "slots_max", "default_slot_fraction", "number_of_slots"}
    | {"stop_tasks_on_exit", "reserved_cpus", "reserved_memory", "helper_socket"}
    | {"helper_state_dir", "front_user", "provided_as"}
)
"""Keys of [process] executor that an administrator cannot set, because the provider sets them."""

_log = get_logger("finegrain.rm.providers.process")


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The table [process]. `executor` holds the keys that go into the configuration of every
    executor.
    """

    directory: Path | None
    program: tuple[str, ...]
    stop_timeout_ms: int
    log_level: str
    executor: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessShape:
    """The table [shape.process]. `executor` overrides keys of the same name in [process]."""

    shares: tuple[Share, ...]
    executor: Mapping[str, Any]


class ProcessKind:
    """Decodes the configuration of the process provider and creates it."""

    def read_common(self, table: ConfigTable) -> ProcessSettings:
        """Decodes the table [process]."""
        directory = table.text("directory", "", empty_ok=True)
        settings = ProcessSettings(
            directory=Path(directory) if directory else None,
            program=tuple(table.words("program", THIS_PROGRAM, least=1)),
            stop_timeout_ms=table.duration_ms("stop_timeout", STOP_TIMEOUT_MS, least_ms=1_000),
            log_level=table.text("log_level", "", empty_ok=True),
            executor=_executor_keys(table),
        )
        table.end()
        return settings

    def read_shape(self, table: ConfigTable, name: str) -> ReadShape:
        """Decodes the table [shape.process]. The shares determine the capacity and the number of
        the executors.
        """
        shares = read_shares(table, name)
        settings = ProcessShape(shares, _executor_keys(table))
        return ReadShape(settings, shares[0].total, len(shares))

    def check(self, common: ProcessSettings, shapes: Mapping[str, Any], file: Path) -> None:
        """Checks that no two shares overlap, and that this host has the cpus and memory for all
        shares.

        Raises:
            ConfigurationError: shares overlap, or this host lacks cpus or memory for them.
        """
        del common
        shares = [share for each in shapes.values() for share in each.shares]
        if wrong := overlap(shares) or missing_here(shares):
            raise ConfigurationError(
                f"{file}: {wrong}; expected shares of this host that are disjoint, or the same "
                "cpus with cpu amounts that fit on them",
                details={"file": file, "field": "shape.process.share"},
            )

    def make(
        self,
        common: ProcessSettings,
        shapes: Sequence[ConfiguredShape],
        context: ProviderContext,
    ) -> ProcessProvider:
        """Creates the provider.

        Raises:
            ConfigurationError: a standby has no explicit directory.
        """
        # A standby that becomes the leader takes over the running executors. So it must read the
        # records of the earlier leader, which are in the directory of the process provider.
        if context.standby and shapes and common.directory is None:
            raise ConfigurationError(
                "a standby finds the executors of the leader's process provider only in the same "
                "directory, on the same host: set [process] directory to the same path for both",
                details={"field": "process.directory"},
            )
        return ProcessProvider(common, shapes, context)


class ProcessProvider:
    """Implements `Provider` with processes on this host; see the module."""

    def __init__(
        self,
        settings: ProcessSettings,
        shapes: Sequence[ConfiguredShape],
        context: ProviderContext,
    ) -> None:
        self._settings = settings
        self._shapes = {each.shape.name: each for each in shapes}
        self._context = context
        self.directory = (settings.directory or context.state_dir / FOLDER).absolute()
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="process-provider")

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        """See `Provider`. `again` has no effect, because this method always checks whether the
        executor exists.
        """
        del again
        return await in_thread(self._threads, lambda _: self._start(executor_id, shape))

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        """See `Provider`."""
        del shape
        return await in_thread(
            self._threads, lambda cancellation: self._stop(executor_id, handle, cancellation)
        )

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        """See `Provider`. Restarts a front that was killed, up to `RESTARTS_MAX` times."""
        return await in_thread(self._threads, lambda _: self._status(executor_id, shape, handle))

    def owns(self, executor_id: str) -> bool:
        """See `Provider`."""
        return self._executor(executor_id, "").exists()

    def noted(self) -> list[str]:
        """See `Provider`."""
        return [path.name for path in executor_paths(self.directory)]

    async def close(self) -> None:
        """See `Provider`."""
        self._threads.shutdown(wait=False)

    def _executor(self, executor_id: str, shape: str) -> ExecutorDirectory:
        environment = {PROVIDED_AS_VARIABLE: shape}
        own = self._shapes.get(shape)
        keys = self._keys(own) if own else self._settings.executor
        # If this process is not root, or if `task_user` is "self", tasks run as the user of this
        # process. The scratch files of these tasks must not be in /tmp, which other users can
        # access.
        if os.geteuid() != 0 or keys.get("task_user") == "self":
            path = self.directory / "executors" / executor_id / "tmp"
            # only the user of this process can access this directory
            environment["TMPDIR"] = str(path)
        return ExecutorDirectory(self.directory, executor_id, self._settings.program, environment)

    def _keys(self, own: ConfiguredShape) -> dict[str, Any]:
        """Returns the keys of the executors' configuration that the administrator set."""
        return {**self._settings.executor, **own.settings.executor}

    def _start(self, executor_id: str, shape: str) -> Started:
        own = self._shapes.get(shape)
        if own is None:
            raise ProviderFailed(f"shape {shape} is no longer configured")
        executor = self._executor(executor_id, shape)
        try:
            # An executor whose directory exists keeps its share, even if its front does not run
            # after a crash.
            if not executor.exists():
                self._claim(executor, own)
            # `start` is repeated after a crash, so the front possibly runs already.
            front = executor.front() or executor.start()
        except OSError as error:
            raise ProviderFailed(
                f"the directory {self.directory} cannot be used: {error.strerror}",
                details={"directory": self.directory},
            ) from None
        claim = read_claim(executor.path)
        share = f" with {claim.share.name} (cpus {claim.share.cpus})" if claim else ""
        return Started(self._handle(executor), f"process {front.pid}{share}")

    def _stop(self, executor_id: str, handle: str, cancellation: Cancellation) -> str:
        # If the executor was started on another host, this host cannot know whether it still runs.
        self._check_here(executor_id, handle)
        executor = self._executor(executor_id, "")
        return executor.stop(self._settings.stop_timeout_ms / 1000, cancellation)

    def _status(self, executor_id: str, shape: str, handle: str) -> Observation:
        executor = self._executor(executor_id, shape)
        if not executor.exists():
            # Without the executor's directory, only the handle shows whether the executor was
            # started on this host.
            if self._elsewhere(handle):
                return Observation(Presence.UNKNOWN, f"it was started on another host: {handle}")
            if executor.front() is not None:
                return Observation(Presence.RUNS, f"its directory {executor.path} was deleted")
            return Observation(Presence.ENDED, "it has no directory and no process")
        # this method limits the size of the output file, because it runs every few seconds
        executor.bound_output()
        if executor.front() is not None:
            return Observation(Presence.RUNS)
        output = executor.last_words() or "nothing"
        if not executor.may_restart():
            return Observation(Presence.ENDED, f"the executor ended; its last output: {output}")
        _log.warning("executor_started_again", executor_id=executor_id, said_last=output)
        try:
            executor.start()
        except ProviderFailed as error:
            # UNKNOWN makes the resource manager check again. Each check tries a restart, as often
            # as `may_restart` allows.
            return Observation(Presence.UNKNOWN, error.message)
        return Observation(Presence.RUNS, "it was killed and was started again")

    def _claim(self, executor: ExecutorDirectory, own: ConfiguredShape) -> None:
        """Books a share that overlaps with no share in use, and creates the directory.

        A share is in use until the directory of its executor is removed, even if the executor does
        not run any more.

        Raises:
            ProviderFailed: no share is free, or it is not known which shares are in use.
        """
        executor.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The lock ensures that no other process claims a share between the reading of the claims
        # and the new claim.
        with self._claiming():
            claims = {path.name: read_claim(path) for path in executor_paths(self.directory)}
            # A share that is possibly in use must not be given to a second executor. An executor
            # whose claim is unreadable uses an unknown share, so no share is given out.
            if unreadable := [name for name, claim in claims.items() if claim is None]:
                raise ProviderFailed(
                    f"the share of {', '.join(unreadable)} cannot be read in {self.directory}; "
                    "stop that executor, or remove its directory if none of its processes runs"
                )
            # If the directory of a live front was deleted, the share of this executor is unknown,
            # too.
            homeless = {path.parent.name for path in fronts_below(self.directory)} - claims.keys()
            if homeless:
                raise ProviderFailed(
                    f"the share of {', '.join(sorted(homeless))} is not known: that executor "
                    f"runs, but its directory in {self.directory} is gone; drain it, or stop it "
                    "by hand"
                )
            given = [claim.share for claim in claims.values() if claim is not None]
            names = {share.name for share in given}
            shares: tuple[Share, ...] = own.settings.shares
            # Compare both the names and the cpus: the administrator can change the cpus of a share
            # after an executor has claimed the share.
            free = (s for s in shares if s.name not in names and not overlap([*given, s]))
            share = next(free, None)
            if share is None:
                raise ProviderFailed(
                    f"all {len(shares)} shares of shape {own.shape.name} are in use, by "
                    + ", ".join(sorted(claims)),
                    details={"shape": own.shape.name},
                )
            executor.make(Claim(own.shape.name, share), self._configuration(executor, own, share))

    @contextmanager
    def _claiming(self) -> Iterator[None]:
        """Takes the lock for claims, and releases it when the context ends. All processes that use
        this directory share the lock.

        The wait has a limit, because an earlier leader that was suspended by SIGSTOP can still have
        the lock.
        """
        path = self.directory / "lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + CLAIM_WAIT_S
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ProviderFailed(
                            f"another process has locked {path} for {CLAIM_WAIT_S:g} s; check for "
                            "a suspended resource manager (SIGSTOP), and resume or kill it"
                        ) from None
                    time.sleep(CLAIM_PAUSE_S)
            yield
        finally:
            # Closing the descriptor releases the lock.
            os.close(descriptor)

    def _configuration(
        self, executor: ExecutorDirectory, own: ConfiguredShape, share: Share
    ) -> str:
        """Returns the executor's configuration file.

        The file sets every key that could contradict the share.
        """
        around, shape = self._context, own.shape
        run_dir = self.directory / "run"
        executor_keys: dict[str, Any] = {
            "listen": "127.0.0.1:0",
            "metrics_listen": "127.0.0.1:0",
            "advertise": "",
            # The administrator's keys override the keys above, but not the keys below.
            **self._keys(own),
            "executor_id": executor.executor_id,
            "provided_as": shape.name,
            "state_dir": str(executor.state_dir),
            "run_dir": str(run_dir),
            "manager": list(around.managers),
            "join_token_file": str(around.token_file(executor.executor_id)),
            "cpus": share.cpus,
            "memory": share.memory_bytes,
            "labels": dict(shape.labels),
            "extended": {
                name.removeprefix(EXTENDED_PREFIX): amount
                for name, amount in shape.total.items()
                # Executors compute the number of their ports from `task_ports`.
                if name.startswith(EXTENDED_PREFIX) and name != EXTENDED_PREFIX + PORTS
            },
            "slots_max": shape.slots_max,
            "default_slot_fraction": own.default_slot_fraction,
            # The tasks must end with the executor, because another executor can get the share
            # afterwards.
            "stop_tasks_on_exit": True,
            "reserved_cpus": "",
            "reserved_memory": 0,
            "helper_socket": "",
            "helper_state_dir": "",
            "front_user": "",
        }
        if share.cpu_milli is not None:
            executor_keys["cpu"] = f"{share.cpu_milli}m"
        log_keys = {"level": self._settings.log_level or around.log_level, "format": "json"}
        return "\n".join([*_toml("executor", executor_keys), *_toml("log", log_keys)])

    def _handle(self, executor: ExecutorDirectory) -> str:
        return f"{socket.gethostname()}:{executor.path}"

    def _elsewhere(self, handle: str) -> bool:
        host, _, path = handle.partition(":")
        # An executor's directory is two levels below the provider's directory.
        return bool(handle) and (host, Path(path).parent.parent) != (
            socket.gethostname(),
            self.directory,
        )

    def _check_here(self, executor_id: str, handle: str) -> None:
        # If the provider's directory has a record of the executor, this provider manages the
        # executor, whatever the handle is.
        if self._elsewhere(handle) and not self.owns(executor_id):
            raise ProviderFailed(
                f"executor {executor_id} was started as {handle}, but this resource manager "
                f"manages {socket.gethostname()}:{self.directory}; stop it there",
                details={"executor_id": executor_id},
            )


def _executor_keys(table: ConfigTable) -> dict[str, Any]:
    keys = table.table("executor")
    # A key in `OURS` could contradict the share or the guarantees of the provider.
    for name, value in keys.plain().items():
        if name in OURS:
            keys.wrong(name, value, "nothing: the provider sets this key")
    return keys.plain()


def _toml(section: str, keys: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{section}]"
    for name, value in keys.items():
        yield f"{name} = {_toml_value(value)}"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {_toml_value(each)}" for key, each in value.items())
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # the same syntax in TOML as in JSON
