"""Determines the user that a task runs as, and the environment that it gets.

The helper checks the same rules again, because it has the privilege. The check here gives the
caller an error that says what to do.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.errors import ConfigurationError, PermissionDenied, Reason
from task_executor.engine.slots import Slot
from task_executor.options import TaskExecutorOptions

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
SELF = "self"
PORTS_VARIABLE = "FINEGRAIN_PORTS"


@dataclass(frozen=True, slots=True)
class User:
    """A user of this host."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class UserPolicy:
    """The default user of tasks, and the other users that they may name."""

    own: User
    default: User
    allow_root_tasks: bool
    root_helper: bool = False  # True: a separate helper unit, which may run as root

    def resolve(self, wanted: str) -> User:
        """Returns the user of a task that names `wanted`; empty: the default user.

        Raises:
            PermissionDenied: USER_NOT_ALLOWED; the error names the user that is allowed.
        """
        if not wanted or wanted in (self.default.name, str(self.default.uid)):
            return self.default
        if wanted == SELF:
            wanted = self.own.name
        user = find_user(wanted)
        if user is None:
            raise self._refusal(wanted, "there is no such user on this host")
        # Another way to write the default user, for example its number.
        if user.uid == self.default.uid:
            return user
        if self.own.uid != 0 and not self.root_helper:
            raise self._refusal(wanted, f"this executor runs as {self.own.name}, not as root")
        if user.uid == 0 and self.allow_root_tasks:
            return user
        if user.uid == 0:
            raise self._refusal(wanted, "tasks as root need allow_root_tasks")
        raise self._refusal(wanted, "it is not the configured task_user")

    def _refusal(self, wanted: str, why: str) -> PermissionDenied:
        return PermissionDenied(
            f"user {wanted!r}: {why}; leave user empty to run as {self.default.name}",
            reason=Reason.USER_NOT_ALLOWED,
            details={"user": wanted, "allowed": self.default.name},
        )


def user_policy(options: TaskExecutorOptions) -> UserPolicy:
    """Returns the policy that the options define on this host.

    Raises:
        ConfigurationError: the task user does not exist, or would be root without
            `allow_root_tasks`.
    """
    own = find_user(str(os.geteuid())) or User(str(os.geteuid()), os.geteuid(), os.getegid(), "/")
    root_helper = options.helper_socket is not None
    # Without root, a process can only run tasks as its own user.
    if (own.uid != 0 and not root_helper) or options.task_user in ("", SELF):
        default = own
    else:
        found = find_user(options.task_user)
        if found is None:
            raise ConfigurationError(
                f"task_user is {options.task_user!r}, and there is no such user on this host; "
                "create it (useradd --system), or name another one",
                details={"task_user": options.task_user},
            )
        default = found
    if default.uid == 0 and not options.allow_root_tasks:
        raise ConfigurationError(
            f"task_user is {options.task_user!r}, so tasks would run as root; set task_user to "
            "another user (nobody), or set allow_root_tasks to allow that",
            details={"task_user": options.task_user},
        )
    return UserPolicy(own, default, options.allow_root_tasks, root_helper)


def find_user(name: str) -> User | None:
    """Finds a user by name or number; None if there is none."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, ValueError, OverflowError):
        return None
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def task_environment(
    env: Mapping[str, str],
    *,
    user: User,
    slot: Slot,
    task_id: str,
    executor_id: str,
    cpus: str,
    devices: Mapping[str, str],
    operators: Mapping[str, str],
) -> dict[str, str]:
    """Returns the environment of a task.

    The task's own variables override the defaults (PATH, HOME). Those of devices and FINEGRAIN_
    variables override both.

    Args:
        env: variables that the task requested.
        user: the user that the task runs as.
        slot: where it runs.
        task_id: the task.
        executor_id: this executor.
        cpus: cpu list that the slot is bound to.
        devices: variables that name the slot's devices.
        operators: variables about operators of job graphs.
    """
    home = user.home if os.path.isdir(user.home) else "/"  # noqa: PTH112 - a text, not a tree
    spec = slot.spec
    return {
        "PATH": DEFAULT_PATH,
        "HOME": home,
        **env,
        "FINEGRAIN_ALLOCATION_ID": spec.allocation_id,
        "FINEGRAIN_JOB_ID": spec.job_id,
        "FINEGRAIN_TASK_ID": task_id,
        "FINEGRAIN_EXECUTOR_ID": executor_id,
        "FINEGRAIN_CPU_MILLI": str(spec.profile.cpu_milli),
        "FINEGRAIN_MEMORY_BYTES": str(spec.memory_bytes),
        "FINEGRAIN_CPUS": cpus,
        **({PORTS_VARIABLE: ",".join(map(str, ports))} if (ports := slot.isolation.ports) else {}),
        **operators,
        **devices,
    }
