"""`finegrain executor helper`: runs the privileged helper in a separate systemd unit.

It takes the same options as the front, derives the helper's configuration, and then replaces itself
with the helper. It imports no grpc.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from finegrain.errors import ConfigurationError, FinegrainError
from finegrain.ids import ID_PATTERN
from task_executor.helper.launch import become_helper
from task_executor.join_environment import take_join_token
from task_executor.options import TaskExecutorOptions
from task_executor.service.checkpoint import STATE_FILE
from task_executor.service.prepared import check_ours, helper_config, host_name
from task_executor.service.task_users import User, find_user, user_policy

EXIT_USAGE = 2


def run(options: TaskExecutorOptions) -> int:
    """Becomes the helper. Returns only if that fails.

    Returns:
        Exit status 2; the reason is on standard error.
    """
    try:
        take_join_token()  # for the front only; no child process may inherit it
        socket = options.helper_socket
        if socket is None:
            raise ConfigurationError(
                "helper_socket is not set; a separate helper listens at it, and the executor "
                "connects to it: set executor.helper_socket for both"
            )
        front = _front_user(options)
        config = helper_config(options, executor_id(options), user_policy(options))
        socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Checked before the socket is made there: another process could replace it.
        check_ours(socket.parent)
        # The front starts and stops on its own, so no pid of it is known here.
        become_helper(replace(config, front_uid=front.uid, front_gid=front.gid, front_pid=None))
    except FinegrainError as error:
        sys.stderr.write(f"finegrain: {error.message}\n")
    except OSError as error:
        sys.stderr.write(f"finegrain: the helper cannot be started: {error}\n")
    return EXIT_USAGE


def _front_user(options: TaskExecutorOptions) -> User:
    user = find_user(options.front_user or str(os.geteuid()))
    if user is None:
        raise ConfigurationError(
            f"front_user is {options.front_user!r}, and there is no such user on this host; "
            "create it (useradd --system), or name another one",
            details={"front_user": options.front_user},
        )
    return user


def executor_id(options: TaskExecutorOptions) -> str:
    """Returns the configured id, else the id saved by the front, else the front's own default."""
    # The same order as in the front, because both must use the same name.
    return options.executor_id or _saved_id(options.state_dir / STATE_FILE) or host_name()


def _saved_id(path: Path) -> str:
    """Returns the id in the front's checkpoint; empty if it is not a valid id.

    The front is less privileged, so its file is not trusted for anything else.
    """
    try:
        found = json.loads(json.loads(path.read_text())["content"])["executor_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) and ID_PATTERN.fullmatch(found) else ""
