"""Implements `finegrain executor helper`, which runs the privileged helper in its own systemd unit.

The command has the same options as the front. It computes the helper's configuration from these
options, and then replaces its process with the helper. It must not import grpc.
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
from task_executor.options import TaskExecutorOptions
from task_executor.service.checkpoint import STATE_FILE
from task_executor.service.prepared import check_ours, helper_config, host_name
from task_executor.service.task_users import User, find_user, user_policy

EXIT_USAGE = 2


def run(options: TaskExecutorOptions) -> int:
    """Replaces this process with the helper. Returns only if the helper cannot be started.

    Returns:
        The exit status 2. The reason is on standard error.
    """
    try:
        socket = options.helper_socket
        if socket is None:
            raise ConfigurationError(
                "helper_socket is not set; set executor.helper_socket to the same path for the "
                "helper, which listens at this socket, and for the executor, which connects to it"
            )
        front = _front_user(options)
        config = helper_config(options, executor_id(options), user_policy(options))
        socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # Check the directory before the socket is made: in an unsafe directory, another process
        # could replace the socket.
        check_ours(socket.parent)
        # A separate unit starts the front, so this process does not know the front's pid.
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
            f"front_user is {options.front_user!r}, but this host has no such user; create the "
            "user (useradd --system), or set front_user to another user",
            details={"front_user": options.front_user},
        )
    return user


def executor_id(options: TaskExecutorOptions) -> str:
    """Returns the id of the executor: the configured id, the id that the front has saved, or the
    host name."""
    # The front never uses the host name. Without a configured id, its id is the name in its
    # certificate. The front refuses a helper that has another id.
    return options.executor_id or _saved_id(options.state_dir / STATE_FILE) or host_name()


def _saved_id(path: Path) -> str:
    """Returns the id in the front's checkpoint; empty if it is not a valid id.

    The front writes this file, and has fewer privileges than the helper. So the helper reads
    nothing else from the file.
    """
    try:
        found = json.loads(json.loads(path.read_text())["content"])["executor_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) and ID_PATTERN.fullmatch(found) else ""
