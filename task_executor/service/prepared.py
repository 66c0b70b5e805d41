"""Prepares a front before it serves: identity, lock, capacity plan, and a helper that answers.

The preparation begins with cheap checks and ends with the start of the helper. This module must not
import grpc, because the helper must be started before grpc is imported.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from finegrain.credentials import Credentials
from finegrain.devices.device import HostDevices
from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.ids import ID_PATTERN, check_id
from task_executor.helper.launch import (
    HelperConfig,
    HelperNotStarted,
    find_helper,
    start_helper,
)
from task_executor.host.configured_devices import discover
from task_executor.host.detection import detect
from task_executor.host.device_nodes import NO_NODES, DeviceNodes, read_device_nodes
from task_executor.host.gpu_profiles import gpu_source, nics
from task_executor.membership import executor_credentials
from task_executor.options import TaskExecutorOptions
from task_executor.provided_as import provided_as
from task_executor.service.checkpoint import HELPER_FOLDER, SavedState, StateDirectory
from task_executor.service.host_plan import HostPlan, plan_host
from task_executor.service.task_users import UserPolicy, user_policy

ISOLATIONS = ("auto", "none")
DEFAULT_EXECUTOR_ID = "task-executor"


@dataclass(frozen=True, slots=True)
class Prepared:
    """All inputs from which the front is built."""

    options: TaskExecutorOptions
    directory: StateDirectory
    saved: SavedState
    plan: HostPlan
    users: UserPolicy
    credentials: Credentials
    helper: HelperConfig
    provided_as: str = ""
    # Reads /proc and /sys to find the files of devices. A slot can open only the files of its
    # devices.
    find_nodes: Callable[[HostDevices], DeviceNodes] = lambda _devices: NO_NODES

    @property
    def helper_is_ours(self) -> bool:
        """True if this process starts and stops the helper; False if the helper is a separate
        unit.
        """
        return self.options.helper_socket is None

    @property
    def slot_sockets(self) -> Path:
        """The folder of the slots' sockets: a short path, unique for the state directory."""
        run_dir, state_dir = self.options.run_dir.absolute(), self.options.state_dir.absolute()
        return run_dir / f"slots-{_mark(state_dir)}"

    @property
    def task_root(self) -> Path:
        """The helper's folder that contains the directories of all tasks."""
        return Path(self.helper.state_dir) / "tasks"


def prepare(options: TaskExecutorOptions, stopping: threading.Event | None = None) -> Prepared:
    """Locks the state directory, plans the host, and starts the helper (or checks a separate
    helper). At the first start, the executor also joins the cluster.

    Args:
        options: the executor's options.
        stopping: an event that ends the wait of a first join.

    Raises:
        ConfigurationError, InvalidArgument: the executor cannot start with this configuration. No
            lock is left.
        Unauthenticated, Unavailable: the executor could not join the cluster.
    """
    directory = StateDirectory.open(options.state_dir.absolute())
    try:
        prepared = _resolve(options, directory, stopping or threading.Event())
        if prepared.helper_is_ours:
            start_helper(prepared.helper)
        else:
            find_helper(prepared.helper)
    except HelperNotStarted as error:
        directory.close()
        what = "could not be started" if options.helper_socket is None else "cannot be used"
        raise ConfigurationError(
            f"the helper {what}: {error}", details={"state_dir": directory.path}
        ) from None
    # Release the lock, so that another start can lock the directory at once.
    except BaseException:
        directory.close()
        raise
    return prepared


def _resolve(
    options: TaskExecutorOptions, directory: StateDirectory, stopping: threading.Event
) -> Prepared:
    if options.executor_id:
        check_id("executor_id", options.executor_id)
    if options.isolation not in ISOLATIONS:
        raise InvalidArgument("isolation", options.isolation, "one of " + ", ".join(ISOLATIONS))
    saved = directory.load(options.executor_id)
    users = user_policy(options)
    topology = detect(Path("/"), gpu_source(options.fake_gpus))
    if options.fake_gpus:
        topology = replace(topology, pci_devices=nics(options.fake_gpus), fpgas=())
    configured = discover(options.device_types, topology.numa_nodes)
    plan = plan_host(options, topology, configured)
    # Do this last, because a join token works only once.
    credentials = executor_credentials(
        directory.path, options.join_token_file, saved.executor_id, stopping
    )
    saved = replace(saved, executor_id=credentials.who.name)
    return Prepared(
        options=options,
        directory=directory,
        saved=saved,
        plan=plan,
        find_nodes=lambda devices: read_device_nodes(
            topology, devices, configured.files, open_types=options.open_devices
        ),
        users=users,
        credentials=credentials,
        helper=helper_config(options, saved.executor_id, users),
        provided_as=provided_as(options.provided_as),
    )


def helper_config(
    options: TaskExecutorOptions, executor_id: str, users: UserPolicy
) -> HelperConfig:
    """Returns the configuration of the helper, which the front or a separate unit starts.

    Args:
        options: the executor's options.
        executor_id: the id of the executor that the helper belongs to.
        users: the users that tasks may run as.

    Raises:
        ConfigurationError: the run directory cannot be created or trusted.
    """
    state_dir = options.state_dir.absolute()
    helper_dir = (options.helper_state_dir or state_dir / HELPER_FOLDER).absolute()
    return HelperConfig(
        state_dir=str(helper_dir),
        socket_path=str(options.helper_socket or _socket_path(options, state_dir)),
        executor_id=executor_id,
        front_uid=os.geteuid(),
        front_gid=os.getegid(),
        cgroup_parent=options.cgroup_parent or None,
        front_pid=os.getpid(),
        isolation=options.isolation,
        task_uid=users.default.uid,
        task_gid=users.default.gid,
        allow_root_tasks=options.allow_root_tasks,
        kubelet_dir=_text(options.kubelet_dir),
        kubelet_config=_text(options.kubelet_config),
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _socket_path(options: TaskExecutorOptions, state_dir: Path) -> Path:
    """Returns the path of the helper's socket.

    The path is short, and is different for each state directory. So several executors can share
    `run_dir`.
    """
    run_dir = options.run_dir.absolute()
    try:
        run_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the run directory {run_dir} cannot be created: {error.strerror}; name another one",
            details={"run_dir": run_dir},
        ) from None
    # Check the parent too, because its owner could replace the whole directory.
    for path in (run_dir, run_dir.parent):
        check_ours(path)
    return run_dir / f"helper-{_mark(state_dir)}.sock"


def _mark(state_dir: Path) -> str:
    return hashlib.sha256(str(state_dir).encode()).hexdigest()[:12]


def check_ours(path: Path) -> None:
    """Checks that only root or this user can replace the helper's socket in this directory.

    A process that could replace the socket would receive every task in place of the helper.

    Raises:
        ConfigurationError: the directory belongs to another user, or all users may replace its
            files.
    """
    found = path.stat()
    # In a directory with the sticky bit, users can replace only their own files.
    open_to_all = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    if open_to_all or found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"the run directory cannot be trusted: {path} belongs to uid {found.st_uid} with mode "
            f"{stat.S_IMODE(found.st_mode):o}; it must belong to this user or to root, and must "
            "not be writable for all users; remove it, or name another run directory",
            details={"run_dir": path},
        )


def host_name() -> str:
    """Returns the short host name, or a default if the host name is not a valid id."""
    name = socket.gethostname().partition(".")[0]
    return name if ID_PATTERN.fullmatch(name) else DEFAULT_EXECUTOR_ID
