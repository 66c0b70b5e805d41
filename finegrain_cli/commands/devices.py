"""Implements the commands about devices: `devices`, `cordon` and `uncordon`."""

from __future__ import annotations

from typing import Annotated

import typer

from finegrain.errors import InvalidArgument
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    DryRunOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.text.output import OutputFormat, print_list, print_object
from finegrain_cli.text.preview import preview_text

DeviceArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXECUTOR/DEVICE",
        autocompletion=completing.devices,
        help="Device, such as host-a/gpu3; a UUID may replace gpu3.",
    ),
]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    for command in (devices, cordon, uncordon):
        app.command()(reporting_errors(command))


def devices(
    executor: Annotated[
        str,
        typer.Argument(
            metavar="[EXECUTOR]",
            autocompletion=completing.executors,
            help="Show only devices of this executor.",
        ),
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List devices with their health, allocated amounts and slots.

    -o wide adds links between GPUs, UUIDs, and the share and memory use of each slot.

    \b
    Examples:
      finegrain devices
      finegrain devices host-a -o wide
    """
    enter_command(output, manager, credentials, config)
    from finegrain_cli.text.devices import DEVICE_COLUMNS, device_rows

    with open_cluster() as cluster:
        found = cluster.devices(executor)
    print_list("DeviceList", device_rows(found), DEVICE_COLUMNS, output)


def cordon(
    device: DeviceArgument,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Reason, shown to all users.")
    ] = "",
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Stop giving a device to new slots. Slots that have the device keep it.

    The cordon stays after restarts. `finegrain uncordon` ends it.

    \b
    Examples:
      finegrain cordon host-a/gpu3 --reason 'memory errors'
    """
    enter_command(output, manager, credentials, config)
    executor_id, name = _parts(device)
    with open_cluster() as cluster:
        if dry_run:
            preview = cluster.preview("CORDON", executor_id=executor_id, device=name)
            text = f"would cordon {device}: {preview_text(preview)}"
            print_object("Preview", preview.to_dict(), output, text)
            return
        uuid = cluster.cordon(executor_id, name, reason=reason)
    data = {"executor_id": executor_id, "device": name, "uuid": uuid, "reason": reason}
    print_object("Cordon", data, output, f"{device} gets no new work")


def uncordon(
    device: DeviceArgument,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Let new slots use a cordoned device again.

    \b
    Examples:
      finegrain uncordon host-a/gpu3
    """
    enter_command(output, manager, credentials, config)
    executor_id, name = _parts(device)
    with open_cluster() as cluster:
        cluster.uncordon(executor_id, name)
    data = {"executor_id": executor_id, "device": name}
    print_object("Uncordon", data, output, f"{device} is no longer cordoned")


def _parts(text: str) -> tuple[str, str]:
    """Splits "EXECUTOR/DEVICE"."""
    executor_id, slash, name = text.partition("/")
    if not slash or not executor_id or not name:
        raise InvalidArgument("EXECUTOR/DEVICE", text, "an executor and a device: host-a/gpu3")
    return executor_id, name
