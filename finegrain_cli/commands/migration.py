"""Implements `finegrain certs migrate`, which helps executors of a version without certificates to
join.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.identity import Role
from finegrain.values.states import ExecutorState
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    YesOption,
    confirm,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.text.output import Column, OutputFormat, print_list, print_object, say

if TYPE_CHECKING:
    import finegrain_client as fg

TOKEN_TTL_S = 7 * 24 * 3_600
COLUMNS = (
    Column("executor", lambda row: str(row["executor_id"])),
    Column("token file", lambda row: str(row["token_file"] or "-")),
)


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    app.command()(reporting_errors(migrate))


def migrate(
    to: Annotated[
        str,
        typer.Option("--to", metavar="DIR", help="Directory for the token files."),
    ] = "join-tokens",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the executors that are missing.")
    ] = False,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish", help="Forget the executors that are missing, and end jobs without an owner."
        ),
    ] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Write a join token for each known executor that has not joined yet.

    Run it after the upgrade of a resource manager that had no certificates. The resource manager
    waits up to 7 days for its executors. They keep their slots, and their tasks continue. Copy each
    file to its executor's host as join.token in the state directory, and start the new version
    there.

    \b
    Examples:
      finegrain certs migrate --dry-run
      finegrain certs migrate --to /root/join-tokens
      finegrain certs migrate --finish --yes
    """
    enter_command(output, manager, credentials, config)
    if dry_run and finish:
        raise InvalidArgument("--dry-run", "given with --finish", "only one of the two")
    with open_cluster() as cluster:
        missing = [
            each.executor_id
            for each in cluster.executors()
            if each.state is ExecutorState.UNCONFIRMED
        ]
        if finish:
            _finish(cluster, missing, output, yes=yes)
            return
        rows: list[dict[str, Any]] = []
        for executor_id in missing:
            file = None if dry_run else _write_token(cluster, Path(to), executor_id)
            rows.append({"executor_id": executor_id, "token_file": str(file) if file else None})
    print_list("MissingExecutorList", rows, COLUMNS, output)
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        say(_advice(len(rows), dry_run=dry_run))


def _finish(
    cluster: fg.blocking.Cluster, missing: list[str], output: OutputFormat, *, yes: bool
) -> None:
    jobs = [each.job_id for each in cluster.jobs() if not each.owner]
    if missing or jobs:
        confirm(
            f"this forgets {len(missing)} executors ({', '.join(missing) or 'none'}), and ends"
            f" {len(jobs)} jobs without an owner, with their tasks",
            yes=yes,
        )
    for executor_id in missing:
        cluster.forget(executor_id)
    for job_id in jobs:
        cluster.terminate_job(job_id)
    data = {"forgotten": missing, "terminated": jobs}
    text = f"forgot {len(missing)} executors, ended {len(jobs)} jobs of the earlier version"
    print_object("MigrationFinished", data, output, text)


def _write_token(cluster: fg.blocking.Cluster, folder: Path, executor_id: str) -> Path:
    from finegrain.credentials import write_private_file

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot create {folder}: {error.strerror}") from None
    made = cluster.create_token(Role.EXECUTOR, executor_id, ttl_s=TOKEN_TTL_S)
    path = folder / f"{executor_id}.token"
    write_private_file(path, made.token.encode() + b"\n")
    return path


def _advice(missing: int, *, dry_run: bool) -> str:
    if not missing:
        return "all known executors have joined"
    if dry_run:
        return (
            f"{missing} executors have not joined yet; finegrain certs migrate makes their tokens"
        )
    return (
        "copy each file to its host as join.token in the executor's state directory (mode 0600),"
        " and start the new version there; tokens are valid for 7 days"
    )
