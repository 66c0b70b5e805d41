"""Chooses the user that runs the tasks of a local cluster.

If possible, tasks do not run as the user of the daemons, because this user can read the daemons'
keys. Tasks also do not run as root, if possible, because they would have all privileges.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from finegrain.errors import InvalidArgument
from task_executor.service.task_users import SELF, User, find_user

TASK_USER = "nobody"
SUDO_VARIABLE = "SUDO_UID"


@dataclass(frozen=True, slots=True)
class TaskUser:
    """The user that runs tasks, in the form of executors' options.

    Attributes:
        name: name of the user, or "self" for the user of the daemons.
        allow_root: whether tasks are allowed to run as root.
    """

    name: str
    allow_root: bool = False

    @property
    def user(self) -> User | None:
        """The user, or None if this host does not have this user."""
        return find_user(str(os.geteuid()) if self.name == SELF else self.name)

    @property
    def is_shared(self) -> bool:
        """True if the daemons run as the same user, so that tasks can read the daemons' keys."""
        return self.name == SELF


def choose_task_user(
    wanted: str = "", configured: str = TASK_USER, *, allow_root: bool = False
) -> TaskUser:
    """Returns the user that runs tasks.

    If the caller is not root, the user of the daemons always runs the tasks. If the caller is root,
    the first of these users runs the tasks: the wanted user, the user who called sudo, the
    configured user.

    Args:
        wanted: name or number of a user. Empty if no user was named.
        configured: `executor.task_user` of the configuration.
        allow_root: `executor.allow_root_tasks` of the configuration.

    Raises:
        InvalidArgument: there is no such user, or tasks cannot run as this user because the caller
            is not root.
    """
    own_uid = os.geteuid()
    user = find_user(str(own_uid) if wanted == SELF else wanted) if wanted else None
    if wanted and user is None:
        raise InvalidArgument("--task-user", wanted, "a user of this host")
    if own_uid != 0:
        if user is not None and user.uid != own_uid:
            allowed = "your own user; only root can run tasks as another user"
            raise InvalidArgument("--task-user", wanted, allowed)
        return TaskUser(SELF)
    if user is not None:
        return TaskUser(SELF, True) if user.uid == 0 else TaskUser(user.name)
    caller = find_user(os.environ.get(SUDO_VARIABLE, ""))
    if caller is not None and caller.uid != 0:
        return TaskUser(caller.name)
    return TaskUser(configured, allow_root)
