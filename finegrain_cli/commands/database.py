"""Implements `finegrain db ...`, which maintains the database of the resource manager."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from finegrain.errors import InvalidArgument
from finegrain_cli.common import (
    ConfigOption,
    OutputOption,
    YesOption,
    confirm,
    enter_command,
    reporting_errors,
)
from finegrain_cli.context import current
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.text.output import Column, OutputFormat, print_list, print_object, say

DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        metavar="URL",
        help="URL of the database; default: rm.database of the configuration, otherwise SQLite in "
        "state_dir.",
    ),
]
EPOCH_HELP = "The highest rm_epoch that an executor reports; 0 if no executor runs."
FINDINGS = (
    Column("severity", lambda row: row["severity"]),
    Column("finding", lambda row: row["message"]),
)


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    group = typer.Typer(no_args_is_help=True)
    for command in (upgrade, check, backup, restore, raise_epoch):
        group.command()(reporting_errors(command))
    app.add_typer(group, name="db", help="Maintain the resource manager's database.")


def upgrade(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be done.")
    ] = False,
    database: DatabaseOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Update the schema to this version, or create the database.

    \b
    Examples:
      finegrain db upgrade --dry-run
    """
    enter_command(output, config_file=config)
    from resource_manager.storage import schema

    url = _url(database, make=not dry_run)
    done = schema.upgrade(url, dry_run=dry_run)
    verb = "would upgrade" if dry_run else "upgraded"
    head = f"{_shown(url)}: {verb} from schema {done.from_version} to {done.to_version}"
    if not done.steps:
        head = f"{_shown(url)}: schema {done.to_version}, nothing to do"
    data = {
        "database": _shown(url),
        "from_version": done.from_version,
        "to_version": done.to_version,
        "steps": done.steps,
        "dry_run": dry_run,
    }
    print_object(
        "DatabaseUpgrade", data, output, "\n".join((head, *(f"  {s}" for s in done.steps)))
    )


def check(
    database: DatabaseOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Read the whole database, and list errors and risks.

    The command changes nothing.

    \b
    Examples:
      finegrain db check
    """
    enter_command(output, config_file=config)
    from resource_manager.storage import schema

    url = _url(database)
    findings = schema.check(url)
    rows = [{"severity": each.severity.value, "message": each.message} for each in findings]
    if rows or output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_list("DatabaseFindingList", rows, FINDINGS, output)
    else:
        print(f"{_shown(url)}: sound, schema {schema.head_version()}")
    if any(each.severity is schema.Severity.ERROR for each in findings):
        raise typer.Exit(ExitCode.ERROR)


def backup(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="File for the copy; an older backup with this name is replaced."
        ),
    ],
    database: DatabaseOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Write a complete copy of the database, even while the database is in use.

    \b
    Examples:
      finegrain db backup /backup/finegrain.db
    """
    enter_command(output, config_file=config)
    from resource_manager.storage import schema

    url = _url(database)
    schema.backup(url, Path(file))
    data = {"database": _shown(url), "file": str(Path(file).absolute())}
    print_object("DatabaseBackup", data, output, f"{_shown(url)}: copied to {file}")


def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Backup to restore.")],
    above_epoch: Annotated[
        int | None,
        typer.Option("--above-epoch", metavar="N", min=0, help=EPOCH_HELP, show_default=False),
    ] = None,
    yes: YesOption = False,
    database: DatabaseOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Replace the database by a backup.

    The resource manager must be stopped. Requests and slots that were made after the backup are
    lost. Executors free these slots when they report.

    \b
    Examples:
      finegrain db restore /backup/finegrain.db --above-epoch 7 --yes
    """
    enter_command(output, config_file=config)
    from resource_manager.storage import schema

    url = _url(database, make=True)
    # Check this before the question to the user, so that the user does not confirm an impossible
    # restore.
    schema.check_restorable(url)
    # An executor rejects commands with an epoch below the highest epoch that it has seen. So the
    # new epoch must be higher than every epoch that an executor has seen.
    epoch = _epoch(above_epoch)
    confirm(
        f"{_shown(url)} will be replaced by {file}; the present database is kept in the same "
        "directory",
        yes=yes,
    )
    done = schema.restore(url, Path(file), above_epoch=epoch)
    data = {
        "database": _shown(url),
        "rm_epoch": done.rm_epoch,
        "kept": str(done.kept) if done.kept else None,
    }
    kept = f"; the old one is now {done.kept}" if done.kept else ""
    print_object(
        "DatabaseRestore", data, output, f"{_shown(url)}: restored, epoch {done.rm_epoch}{kept}"
    )
    if problem := _authority_problem(done.authority_key):
        say(f"warning: {problem}")


def raise_epoch(
    above_epoch: Annotated[int, typer.Option("--above-epoch", metavar="N", min=0, help=EPOCH_HELP)],
    database: DatabaseOption = "",
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Raise the epoch above the epochs in use.

    Use this after a restore by other means, such as pg_restore.

    \b
    Examples:
      finegrain db raise-epoch --above-epoch 7
    """
    enter_command(output, config_file=config)
    from resource_manager.storage import schema

    url = _url(database)
    epoch = schema.raise_epoch(url, above_epoch=above_epoch)
    data = {"database": _shown(url), "rm_epoch": epoch}
    print_object("DatabaseEpoch", data, output, f"{_shown(url)}: epoch {epoch}")


def _url(given: str, *, make: bool = False) -> str:
    """Returns the URL of the database.

    Args:
        given: the URL on the command line. If empty, the function returns the URL in the
            configuration.
        make: whether to create the resource manager's state directory, as a start of the resource
            manager does.
    """
    from finegrain_cli.config.daemon_options import database_url, rm_state_dir

    settings = current().configuration().settings
    if make and not given and not settings.rm.database:
        with suppress(OSError):  # the later opening of the database reports the problem
            rm_state_dir(settings.rm).mkdir(mode=0o700, parents=True, exist_ok=True)
    return given or database_url(settings)


def _authority_problem(database_key: str) -> str:
    """Returns the reason why the authority of this host does not fit a database, or an empty text
    if the authority fits.
    """
    if not database_key:
        return ""
    from finegrain_cli.authority_files import trusted_keys
    from finegrain_cli.config.daemon_options import rm_state_dir

    state_dir = rm_state_dir(current().configuration().settings.rm)
    keys = trusted_keys(state_dir)
    if database_key in keys:
        return ""
    here = (
        f"the authority in {state_dir} is of another cluster"
        if keys
        else (f"{state_dir} has no authority")
    )
    return (
        f"the database belongs to a cluster authority, and {here}, so the resource manager will"
        " not start; run: finegrain certs restore FILE"
    )


def _shown(url: str) -> str:
    """Returns the URL without the password."""
    from resource_manager.storage.location import DatabaseUrl

    return str(DatabaseUrl.parse(url))


def _epoch(given: int | None) -> int:
    if given is not None:
        return given
    if not _can_ask():
        raise InvalidArgument("--above-epoch", "not given", EPOCH_HELP.rstrip(".").lower())
    return int(typer.prompt(EPOCH_HELP.rstrip("."), type=int, default=0, err=True))


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()
