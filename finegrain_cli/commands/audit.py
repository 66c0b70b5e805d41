"""Implements `finegrain audit`, which shows changes by administrators and refused calls."""

from __future__ import annotations

from typing import Annotated

import typer

from finegrain.errors import FinegrainError, Reason
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.text.columns import age
from finegrain_cli.text.output import Column, OutputFormat, print_list, print_object

COLUMNS = (
    Column("number", lambda row: str(row["sequence"])),
    Column("age", lambda row: age(row, "entry_time")),
    Column("actor", lambda row: str(row["actor"])),
    Column("method", lambda row: str(row["method"])),
    Column("outcome", lambda row: str(row["outcome"])),
    Column("calls", lambda row: str(row["count"])),
    Column("object", lambda row: str(row["object"]) or "-"),
)


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    audit = typer.Typer(no_args_is_help=True)
    audit.command(name="list")(reporting_errors(list_audit))
    audit.command(name="verify")(reporting_errors(verify_audit))
    app.add_typer(audit, name="audit", help="Show and check what administrators have changed.")


def list_audit(
    actor: Annotated[
        str,
        typer.Option(metavar="IDENTITY", help="Show only entries of this identity."),
    ] = "",
    method: Annotated[
        str,
        typer.Option(metavar="NAME", help="Show only entries of this method."),
    ] = "",
    newest: Annotated[
        int,
        typer.Option("-n", "--newest", metavar="N", min=1, help="Show the last N entries."),
    ] = 100,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List changes by administrators, and refused calls, the oldest first.

    \b
    Examples:
      finegrain audit list --actor operator/ann
      finegrain audit list --method DrainExecutor --newest 10 -o json
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        found = cluster.audit(newest=newest, actor=actor, method=method)
    print_list("AuditList", [each.to_dict() for each in found], COLUMNS, output)


def verify_audit(
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Check that no entry of the audit log was changed or deleted.

    \b
    Examples:
      finegrain audit verify
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        found = cluster.verify_audit()
    if found.problem:
        raise FinegrainError(
            f"the audit log was changed by hand: {found.problem}; compare it with a backup of the"
            " database (finegrain db backup)",
            reason=Reason.STORE_CORRUPT,
            details={"last_sequence": found.last_sequence},
        )
    first, last = found.first_sequence, found.last_sequence
    said = f"entries {first} to {last} are unchanged" if found.entries else "there are no entries"
    print_object("AuditCheck", found.to_dict(), output, said)
