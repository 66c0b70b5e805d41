"""Checks whether tasks and daemons run as different users."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from finegrain_cli.doctor.findings import Finding, ok, warn

if TYPE_CHECKING:
    from finegrain_cli.config.model import Settings

NAME = "users"


def examine_users(settings: Settings) -> Iterator[Finding]:
    """Reports which user runs tasks, for an executor that this user would start."""
    from finegrain_cli.config.daemon_options import task_executor_options
    from task_executor.service.task_users import user_policy

    users = user_policy(task_executor_options(settings))
    if users.note:
        fix = "run executors as root with another task_user, or as a unit with a separate helper"
        yield warn(NAME, users.note.removeprefix("users: "), fix)
    else:
        yield ok(NAME, f"tasks run as {users.default.name}, daemons as {users.own.name}")
