"""Implements `finegrain resize`, which resizes slots, and `finegrain providers`, which shows the
executors that providers can start or have started.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer
from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import FinegrainError, InvalidArgument
from finegrain.units import parse_bytes, parse_cpu_milli, parse_duration_ms, parse_pair
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    WatchOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.device_options import DeviceOptions
from finegrain_cli.naming import full_allocation_id
from finegrain_cli.slot_options import (
    DeviceOption,
    FpgaOption,
    GpuCoreOption,
    GpuMemoryOption,
    GpuMemoryRatioOption,
    GpuOption,
    RdmaOption,
)
from finegrain_cli.text.columns import size_text
from finegrain_cli.text.output import OutputFormat, print_object, say

if TYPE_CHECKING:
    from finegrain_client.blocking import Cluster

WATCH_INTERVAL_S = 0.5
QUIET_S = 1.5  # no message is printed for a shorter wait


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    for command in (resize, providers):
        app.command()(reporting_errors(command))


def resize(
    slot: Annotated[
        str,
        typer.Argument(
            metavar="SLOT",
            autocompletion=completing.slots,
            help="Id of the slot; the beginning or end of the id is enough.",
        ),
    ],
    cpu: Annotated[
        str, typer.Option("--cpu", metavar="CPU", help="CPU in cores, such as 2, 0.5 or 500m.")
    ] = "",
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Memory in bytes, such as 256M or 2G.")
    ] = "",
    cpu_limit: Annotated[
        str,
        typer.Option(
            "--cpu-limit", metavar="CPU", help="CPU limit in cores, if it is higher than --cpu."
        ),
    ] = "",
    resource: Annotated[
        list[str],
        typer.Option(
            "--resource",
            metavar="NAME=COUNT",
            help="Amount of a countable resource, such as license=1.",
        ),
    ] = [],  # noqa: B006 - typer wants the default as a list
    gpu: GpuOption = "",
    gpu_core: GpuCoreOption = 0,
    gpu_memory: GpuMemoryOption = "",
    gpu_memory_ratio: GpuMemoryRatioOption = 0,
    rdma: RdmaOption = "",
    fpga: FpgaOption = "",
    device: DeviceOption = [],  # noqa: B006
    wait_for_use: Annotated[
        bool,
        typer.Option(
            "--wait-for-use",
            help="If the slot uses more memory than the new size, wait until the slot uses less.",
        ),
    ] = False,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Cancel the waiting resize of the slot.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return as soon as the resize is stored durably.")
    ] = False,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="Stop waiting after this time, such as 10m; the resize stays in the queue.",
        ),
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Change the size of a slot while its tasks run.

    The slot can belong to any job. Amounts that you do not name stay unchanged. If the executor has
    no room for a larger size, the resize waits in the queue. A slot keeps its devices, but its
    share of each device can change. An amount of GPUs is the sum over all GPUs of the slot.

    \b
    Examples:
      finegrain resize 01a20a21 --cpu 2 --memory 1G
      finegrain resize 01a20a21 --gpu 0.3
      finegrain resize 01a20a21 --withdraw
    """
    enter_command(output, manager, credentials, config)
    timeout_s = parse_duration_ms("--timeout", timeout) / 1000 if timeout else None
    cpu_milli = parse_cpu_milli("--cpu", cpu) if cpu else None
    memory_bytes = parse_bytes("--memory", memory) if memory else None
    limit_milli = parse_cpu_milli("--cpu-limit", cpu_limit) if cpu_limit else None
    extended = {name: _count(name, text) for name, text in map(_pair, resource)}
    options = DeviceOptions(
        gpu=gpu,
        gpu_core=gpu_core,
        gpu_memory=gpu_memory,
        gpu_memory_ratio=gpu_memory_ratio,
        rdma=rdma,
        fpga=fpga,
        device=tuple(device),
    )
    devices = options.named() or None
    if not (withdraw or cpu or memory or cpu_limit or extended or devices):
        expected = "at least one of --cpu, --memory, --cpu-limit, --resource, --gpu or another"
        expected += " amount of devices, or --withdraw"
        raise InvalidArgument("size", "", expected)
    # All options are decoded above this line. So a wrong option causes an error before any call.
    with open_cluster() as cluster:
        allocation_id = full_allocation_id(cluster, slot)
        if withdraw:
            done = cluster.withdraw_resize(allocation_id)
        else:
            try:
                with explaining_wait(cluster, allocation_id):
                    done = cluster.resize(
                        allocation_id,
                        cpu_milli=cpu_milli,
                        memory_bytes=memory_bytes,
                        extended=extended or None,
                        devices=devices,
                        cpu_limit_milli=limit_milli,
                        wait_for_use=wait_for_use,
                        wait=not no_wait,
                        timeout_s=timeout_s,
                    )
            except InvalidArgument as error:
                raise options.explained(error) from None
    print_object("Slot", done.to_dict(), output, f"{allocation_id}  {size_text(done.to_dict())}")


@contextmanager
def explaining_wait(
    cluster: Cluster, allocation_id: str, what: str = "the resize"
) -> Iterator[None]:
    """Prints once why a change of a slot waits, if the change takes longer than `QUIET_S`."""

    def explain() -> None:
        with suppress(FinegrainError):
            waiting = cluster.explain(allocation_id, max_executors=1).resizes
            why = waiting[-1].summary if waiting else "its executor has not answered yet"
            say(f"finegrain: {what} waits: {why}; finegrain explain {allocation_id}")

    timer = Timer(QUIET_S, explain)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # The timer thread is possibly printing the explanation now. Wait for the thread, because
        # the result must come after the explanation.
        timer.join()


def providers(
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show executors that providers can start or have started.

    The output also shows which requests are planned on these executors.

    \b
    Examples:
      finegrain providers
      finegrain providers --watch
    """
    enter_command(output, manager, credentials, config)
    if watch and output is OutputFormat.JSON:
        raise InvalidArgument("--output", "json", "jsonl or table together with --watch")
    from finegrain_cli.text.providers import providers_text

    before = ""
    with open_cluster() as cluster:
        while True:
            found = cluster.providers()
            text = providers_text(found, wide=output is OutputFormat.WIDE)
            now = str(found) if output is OutputFormat.JSONL else text
            if now != before:
                print_object("Providers", found.to_dict(), output, text)
            if not watch:
                return
            before = now
            time.sleep(WATCH_INTERVAL_S)


def _pair(text: str) -> tuple[str, str]:
    return parse_pair("--resource", text)


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"--resource {name}", text, "a whole number")
    return int(text)
