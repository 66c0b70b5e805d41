"""Implements `finegrain users`, which shows users with the resources that they use, and sets limits
for all jobs of a user together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import InvalidArgument
from finegrain_cli.commands.groups import NONE, limit_count, limits_from
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.text.output import OutputFormat, print_list, print_object

if TYPE_CHECKING:
    from finegrain_client.types.groups import UserStatus

UserArgument = Annotated[
    str, typer.Argument(metavar="USER", help="A user, such as alice; all: all other users.")
]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    group = typer.Typer(invoke_without_command=True)
    group.callback()(reporting_errors(show))
    group.command(name="set")(reporting_errors(set_))
    group.command()(reporting_errors(delete))
    app.add_typer(group, name="users", help="Show users with their use, and change their limits.")


def show(
    context: typer.Context,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show the users that have limits or jobs, with their use and their limits.

    \b
    Examples:
      finegrain users
    """
    from finegrain_cli.text.users import COLUMNS

    if context.invoked_subcommand is not None:
        return
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        found = cluster.users()
    print_list("UserList", [each.to_dict() for each in found], COLUMNS, output)


def set_(
    user: UserArgument,
    max_jobs: Annotated[
        str, typer.Option("--max-jobs", metavar="COUNT|none", help="Maximum number of live jobs.")
    ] = "",
    max_requests: Annotated[
        str,
        typer.Option(
            "--max-requests",
            metavar="COUNT|none",
            help="Maximum number of requests that have not ended, with and without slot.",
        ),
    ] = "",
    max_slots: Annotated[
        str, typer.Option("--max-slots", metavar="COUNT|none", help="Maximum number of slots.")
    ] = "",
    max_cpu: Annotated[
        str,
        typer.Option("--max-cpu", metavar="CORES|none", help="Maximum CPU of all slots, in cores."),
    ] = "",
    max_memory: Annotated[
        str,
        typer.Option(
            "--max-memory", metavar="SIZE|none", help="Maximum memory of all slots, such as 64G."
        ),
    ] = "",
    max_: Annotated[
        list[str],
        typer.Option(
            "--max",
            metavar="NAME=COUNT|none",
            help="Maximum of a countable resource or of devices, such as license=3 or gpu=4.",
        ),
    ] = [],  # noqa: B006 - typer wants the default as a list
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Set limits for all jobs of a user together.

    Limits that you do not name do not change; "none" removes a limit. The limits of "all" apply to
    each user that has no separate limits. They do not apply to administrators. A change stops no
    slot and ends no job.

    \b
    Examples:
      finegrain users set alice --max-jobs 20 --max-slots 100
      finegrain users set all --max-cpu 64 --max-memory 256G
    """
    enter_command(output, manager, credentials, config)
    maximum = limits_from("max", max_slots, max_cpu, max_memory, max_)
    for name, option, text in (
        ("jobs", "--max-jobs", max_jobs),
        ("requests", "--max-requests", max_requests),
    ):
        if text:
            maximum[name] = None if text == NONE else limit_count(option, text)
    with open_cluster() as cluster:
        found = cluster.set_user_limits(_identity(user), maximum)
    print_object("User", found.to_dict(), output, _described(found))


def delete(
    user: UserArgument,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Delete the separate limits of a user, so that the limits of "all" apply.

    \b
    Examples:
      finegrain users delete alice
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        cluster.delete_user_limits(_identity(user))
    print_object("UserLimitsDeleted", {"user": _identity(user)}, output, f"deleted {user}")


def _identity(user: str) -> str:
    if not user:
        raise InvalidArgument("USER", user, "a user, such as alice, or all")
    if user == "all":
        return "*"
    return user if "/" in user else f"user/{user}"


def _described(found: UserStatus) -> str:
    from finegrain_cli.text.groups import limits_text
    from finegrain_cli.text.users import user_text

    return f"{user_text(found.user)}: maximum {limits_text(found.maximum)}"
