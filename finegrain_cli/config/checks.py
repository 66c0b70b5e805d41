"""Checks combinations of values in a configuration, and the files that the values name.

The checks start no process and open no connection.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from finegrain.errors import FinegrainError
from finegrain_cli.config.daemon_options import NO_METRICS
from finegrain_cli.config.model import ListenSection, Settings

FILES = (
    ("client", ("token_file", "tls_ca", "tls_certificate", "tls_key")),
    ("rm", ("tls_ca", "tls_certificate", "tls_key", "cluster_token_file", "user_token_file")),
    ("rm", ("executor_tls_ca", "executor_tls_certificate", "executor_tls_key", "providers_file")),
    ("executor", ("tls_ca", "tls_certificate", "tls_key", "cluster_token_file", "kubelet_config")),
    ("executor", ("manager_tls_ca", "manager_tls_certificate", "manager_tls_key")),
)
PAIRS = (
    ("client", "tls_"),
    ("rm", "tls_"),
    ("rm", "executor_tls_"),
    ("executor", "tls_"),
    ("executor", "manager_tls_"),
)


def find_problems(settings: Settings) -> list[str]:
    """Returns one line per problem, each with the key and what to do."""
    return [
        *_addresses(settings),
        *_beyond_loopback(settings),
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
        ("executor.listen", settings.executor.listen),
        ("executor.metrics_listen", settings.executor.metrics_listen),
        ("executor.advertise", settings.executor.advertise),
        *(("client.manager", each) for each in settings.client.manager),
        *(("executor.manager", each) for each in settings.executor.manager),
    ]
    for name, address in named:
        if address and not (name.endswith("metrics_listen") and address == NO_METRICS):
            try:
                parse_address(address, name)
            except FinegrainError as error:
                yield error.message


def _beyond_loopback(settings: Settings) -> Iterator[str]:
    from finegrain.rpc.addresses import is_loopback

    sections: tuple[tuple[str, ListenSection], ...] = (
        ("rm", settings.rm),
        ("executor", settings.executor),
    )
    for name, section in sections:
        open_ = section.listen and not section.insecure and not section.tls_certificate
        try:
            if open_ and not is_loopback(section.listen):
                yield (
                    f"{name}.listen is {section.listen}, which is not a loopback address: set "
                    f"{name}.tls_certificate and {name}.tls_key, or {name}.insecure if only "
                    "trusted hosts can reach it"
                )
        except FinegrainError:
            continue  # not an address; `_addresses` reports it


def _files(settings: Settings) -> Iterator[str]:
    for section, names in FILES:
        for name in names:
            text = getattr(getattr(settings, section), name)
            if text and not Path(text).is_file():
                yield f"{section}.{name} is {text}; there is no such file"
            elif text and not os.access(text, os.R_OK):
                yield f"{section}.{name} is {text}; this user (uid {os.geteuid()}) may not read it"
    for section, prefix in PAIRS:
        values = getattr(settings, section)
        certificate, key = (getattr(values, prefix + each) for each in ("certificate", "key"))
        if bool(certificate) != bool(key):
            yield f"{section}.{prefix}certificate and {section}.{prefix}key are needed together"


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
    """Yields the problem of the providers' file, such as a share that this host does not have."""
    file = Path(settings.rm.providers_file)
    if not settings.rm.providers_file or not os.access(file, os.R_OK):
        return  # `_files` reports it
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
