"""Checks combinations of values in a configuration. Also checks the files that the values name.

The checks start no process and open no connection.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from finegrain.errors import FinegrainError
from finegrain_cli.config.daemon_options import NOT_SERVED
from finegrain_cli.config.model import Settings

MAY_BE_NONE = ("rm.metrics_listen", "rm.join_listen", "rm.web_listen", "executor.metrics_listen")
FILES = (
    ("client", ("credentials",)),
    ("rm", ("providers_file", "web_certificate", "web_key")),
    ("executor", ("join_token_file", "kubelet_config")),
)


def find_problems(settings: Settings) -> list[str]:
    """Returns one line for each problem. The line names the key, and says what to do."""
    return [
        *_addresses(settings),
        *_web(settings),
        *_files(settings),
        *_numbers(settings),
        *_cpus(settings),
        *_providers(settings),
        *_device_types(settings),
    ]


def _addresses(settings: Settings) -> Iterator[str]:
    from finegrain.rpc.addresses import parse_address

    named = [
        ("rm.listen", settings.rm.listen),
        ("rm.metrics_listen", settings.rm.metrics_listen),
        ("rm.join_listen", settings.rm.join_listen),
        ("rm.join_advertise", settings.rm.join_advertise),
        ("rm.web_listen", settings.rm.web_listen),
        ("executor.listen", settings.executor.listen),
        ("executor.metrics_listen", settings.executor.metrics_listen),
        ("executor.advertise", settings.executor.advertise),
        *(("client.manager", each) for each in settings.client.manager),
        *(("executor.manager", each) for each in settings.executor.manager),
    ]
    for name, address in named:
        if address and not (name in MAY_BE_NONE and address == NOT_SERVED):
            try:
                parse_address(address, name)
            except FinegrainError as error:
                yield error.message


def _web(settings: Settings) -> Iterator[str]:
    from finegrain.rpc.addresses import check_page_address

    rm = settings.rm
    if bool(rm.web_certificate) != bool(rm.web_key):
        yield "rm.web_certificate and rm.web_key belong together; set both, or neither"
    if rm.web_advertise:
        try:
            check_page_address(rm.web_advertise)
        except FinegrainError as error:
            yield error.message


def _files(settings: Settings) -> Iterator[str]:
    for section, names in FILES:
        for name in names:
            text = getattr(getattr(settings, section), name)
            if text and not Path(text).is_file():
                yield f"{section}.{name} is {text}; there is no such file"
            elif text and not os.access(text, os.R_OK):
                yield f"{section}.{name} is {text}; this user (uid {os.geteuid()}) may not read it"


def _numbers(settings: Settings) -> Iterator[str]:
    rm = settings.rm
    if rm.lost_timeout < 2 * rm.report_interval:
        yield (
            f"rm.lost_timeout is {rm.lost_timeout} ms; it must be at least twice "
            f"rm.report_interval ({rm.report_interval} ms)"
        )
    if settings.executor.number_of_slots is not None:
        yield (
            "executor.number_of_slots is deprecated; set executor.default_slot_fraction to "
            f"1/{settings.executor.number_of_slots} instead"
        )


def _cpus(settings: Settings) -> Iterator[str]:
    from finegrain.cpuset import CpuSet

    for name in ("cpus", "reserved_cpus"):
        try:
            CpuSet.parse(getattr(settings.executor, name), f"executor.{name}")
        except FinegrainError as error:
            yield error.message
    if settings.executor.cpus and settings.executor.reserved_cpus:
        yield (
            "executor.cpus and executor.reserved_cpus are both set; a share is used as a whole: "
            "leave reserved cpus out of executor.cpus"
        )


def _providers(settings: Settings) -> Iterator[str]:
    """Yields the problem of the providers' file, if the file has a problem. An example is a share
    that this host does not have.
    """
    file = Path(settings.rm.providers_file)
    if not settings.rm.providers_file or not os.access(file, os.R_OK):
        return  # `_files` reports this problem
    from resource_manager.providers.config import read_providers

    try:
        read_providers(file)
    except FinegrainError as error:
        yield error.message


def _device_types(settings: Settings) -> Iterator[str]:
    if not settings.devices:
        return
    from finegrain_cli.config.daemon_options import task_executor_options
    from task_executor.host.configured_devices import check_type

    for each in task_executor_options(settings).device_types:
        try:
            check_type(each)
        except FinegrainError as error:
            yield error.message
