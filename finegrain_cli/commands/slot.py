"""Implements `finegrain slot`, which parks and unparks slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.units import parse_duration_ms
from finegrain_cli import completing
from finegrain_cli.commands.elastic import explaining_wait
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.naming import full_allocation_id
from finegrain_cli.text.columns import is_parked, size_text
from finegrain_cli.text.output import OutputFormat, print_object

if TYPE_CHECKING:
    from finegrain_client.types.status import SlotStatus

SlotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SLOT",
        autocompletion=completing.slots,
        help="Id of the slot; the beginning or end of the id is enough.",
    ),
]
NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="Return as soon as the change is stored durably.")
]
TimeoutOption = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="Stop waiting after this time; the change stays pending.",
    ),
]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    group = typer.Typer(no_args_is_help=True)
    group.command()(reporting_errors(park))
    group.command()(reporting_errors(unpark))
    app.add_typer(group, name="slot", help="Free the GPUs of a slot for a time.")


def park(
    slot: SlotArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Free the GPUs of a slot while its processes stay.

    The contents of the GPUs' memory move to the slot's main memory, and work on the GPUs waits.
    Other slots can use the GPUs until `finegrain slot unpark`. The executor must allow parking
    (option gpu_parking) and have NVIDIA's cuda-checkpoint.

    \b
    Examples:
      finegrain slot park 01a20a21
      finegrain slots  # shows PARKED
    """
    enter_command(output, manager, credentials, config)
    _change(slot, park=True, no_wait=no_wait, timeout=timeout, output=output)


def unpark(
    slot: SlotArgument,
    no_wait: NoWaitOption = False,
    timeout: TimeoutOption = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Give a parked slot GPUs again, so that its processes continue.

    The change is queued until GPUs are free. `finegrain resize SLOT --withdraw` withdraws the
    change.

    \b
    Examples:
      finegrain slot unpark 01a20a21
      finegrain slot unpark 01a20a21 --no-wait
    """
    enter_command(output, manager, credentials, config)
    _change(slot, park=False, no_wait=no_wait, timeout=timeout, output=output)


def _change(slot: str, *, park: bool, no_wait: bool, timeout: str, output: OutputFormat) -> None:
    timeout_s = parse_duration_ms("--timeout", timeout) / 1000 if timeout else None
    with open_cluster() as cluster:
        allocation_id = full_allocation_id(cluster, slot)
        change = cluster.park if park else cluster.unpark
        with explaining_wait(cluster, allocation_id, "parking" if park else "unparking"):
            done = change(allocation_id, wait=not no_wait, timeout_s=timeout_s)
    print_object("Slot", done.to_dict(), output, f"{allocation_id}  {_text(done)}")


def _text(status: SlotStatus) -> str:
    row = status.to_dict()
    return f"{'PARKED' if is_parked(row) else row['state']}  {size_text(row)}"
