"""Determines the user that a task runs as, and the environment of the task.

The helper, which has the privilege to change users, checks the same rules again. This module also
checks them, so that the caller gets an error that says what to do.
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
USERS_SHARED = (
    "users: shared with the daemons: tasks run as {name} and can read the keys of this executor"
)
"""Note on the isolation of slots."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of this host."""

    name: str
    uid: int
    gid: int
    home: str


@dataclass(frozen=True, slots=True)
class UserPolicy:
    """The default user of tasks, and the other users that tasks may run as."""

    own: User
    default: User
    allow_root_tasks: bool
    root_helper: bool = False  # True if the helper is a separate unit, which can run as root

    @property
    def note(self) -> str:
        """A text for slot reports if tasks run as the user of the daemons; empty: tasks run as
        another user.
        """
        if self.default.uid not in (0, self.own.uid):
            return ""
        return USERS_SHARED.format(name=self.default.name)

    def resolve(self, wanted: str) -> User:
        """Returns the user that a task runs as.

        Args:
            wanted: the name or number of the user that the task requests; empty: the default user.

        Raises:
            PermissionDenied: USER_NOT_ALLOWED. The error names the user that is allowed.
        """
        if not wanted or wanted in (self.default.name, str(self.default.uid)):
            return self.default
        if wanted == SELF:
            wanted = self.own.name
        user = find_user(wanted)
        if user is None:
            raise self._refusal(wanted, "there is no such user on this host")
        # `wanted` can be the default user in another form, for example as a number.
        if user.uid == self.default.uid:
            return user
        if self.own.uid != 0 and not self.root_helper:
            raise self._refusal(wanted, f"this executor runs as {self.own.name}, not as root")
        if user.uid == 0 and self.allow_root_tasks:
            return user
        if user.uid == 0:
            raise self._refusal(wanted, "tasks may run as root only if allow_root_tasks is set")
        raise self._refusal(wanted, "it is not the configured task_user")

    def _refusal(self, wanted: str, why: str) -> PermissionDenied:
        return PermissionDenied(
            f"user {wanted!r}: {why}; leave user empty to run as {self.default.name}",
            reason=Reason.USER_NOT_ALLOWED,
            details={"user": wanted, "allowed": self.default.name},
        )


def user_policy(options: TaskExecutorOptions) -> UserPolicy:
    """Returns the user policy that the options define.

    Raises:
        ConfigurationError: the task user does not exist, or is root although `allow_root_tasks` is
            not set.
    """
    own = find_user(str(os.geteuid())) or User(str(os.geteuid()), os.geteuid(), os.getegid(), "/")
    root_helper = options.helper_socket is not None
    # If a process does not run as root, it can run tasks only as its own user.
    if (own.uid != 0 and not root_helper) or options.task_user in ("", SELF):
        default = own
    else:
        found = find_user(options.task_user)
        if found is None:
            raise ConfigurationError(
                f"task_user is {options.task_user!r}, but this host has no such user; "
                "create the user (useradd --system), or set task_user to another user",
                details={"task_user": options.task_user},
            )
        default = found
    if default.uid == 0 and not options.allow_root_tasks:
        raise ConfigurationError(
            f"task_user is {options.task_user!r}, so tasks would run as root; set task_user to "
            "another user (for example nobody), or set allow_root_tasks to allow tasks as root",
            details={"task_user": options.task_user},
        )
    return UserPolicy(own, default, options.allow_root_tasks, root_helper)


def find_user(name: str) -> User | None:
    """Returns the user with this name or number; None: there is no such user."""
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

    Variables of the submission override the defaults (PATH, HOME). Variables about devices and
    FINEGRAIN_ variables override the submission and the defaults.

    Args:
        env: the variables of the submission.
        user: the user that the task runs as.
        slot: the slot in which the task runs.
        task_id: the id of the task.
        executor_id: the id of this executor.
        cpus: the list of cpus that the slot is bound to.
        devices: the variables that name the slot's devices.
        operators: the variables about operators of job graphs.
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
