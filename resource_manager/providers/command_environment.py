"""Builds the placeholder values and the environment of the administrator's start and stop commands.

An executor that inherits this environment needs no other configuration. In the environment, a
variable whose name contains two underscores sets a key of the executor's configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from finegrain.resources import CPU_MILLI, EXTENDED_PREFIX, MEMORY_BYTES, MIB
from finegrain.units import format_cpu
from resource_manager.providers.command_template import HANDLE
from resource_manager.providers.provider import (
    PROVIDED_AS_VARIABLE,
    ConfiguredShape,
    ProviderContext,
)

NOT_PASSED_ON = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"),
    *("CREDENTIALS_DIRECTORY", "PGPASSWORD"),  # secrets that executors must not receive
)
OWN_PREFIX = "FINEGRAIN_"


def clean_environment() -> dict[str, str]:
    """Returns the environment of this process, without the variables that only this process needs.

    The variables of systemd, of the database, and of the resource manager's configuration are left
    out.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_PASSED_ON and not name.startswith(OWN_PREFIX)
    }


def values_of(executor_id: str, own: ConfiguredShape, around: ProviderContext) -> dict[str, str]:
    """Returns the values of all placeholders. The handle is empty, because it is known only after
    the start command.

    Args:
        executor_id: the id of the executor that the command starts.
        own: the shape of this executor.
        around: the addresses of the resource managers, and the file with the join token.
    """
    shape = own.shape
    cpu_milli, memory_bytes = shape.total.get(CPU_MILLI, 0), shape.total.get(MEMORY_BYTES, 0)
    return {
        "executor_id": executor_id,
        "shape": shape.name,
        "resource_manager": ",".join(around.managers),
        "cpu": format_cpu(cpu_milli),
        "cpu_milli": str(cpu_milli),
        "memory_bytes": str(memory_bytes),
        "memory_mib": str(memory_bytes // MIB),
        "labels": ",".join(f"{name}={value}" for name, value in shape.labels),
        "token_file": str(around.token_file(executor_id)),
        HANDLE: "",
    }


def environment_of(values: Mapping[str, str], own: ConfiguredShape | None) -> dict[str, str]:
    """Returns the complete environment of a command.

    Args:
        values: the values of the placeholders, as `values_of` returns them, with the handle if it
            is known.
        own: the shape of the executor, or None if the shape is not configured any more.
    """
    # `clean_environment` removes the FINEGRAIN_ variables of the resource manager. So the executor
    # receives no FINEGRAIN_ variables except those that are set here.
    environment = {
        **clean_environment(),
        "FINEGRAIN_EXECUTOR_ID": values["executor_id"],
        "FINEGRAIN_RESOURCE_MANAGER": values["resource_manager"],
        "FINEGRAIN_JOIN_TOKEN_FILE": values["token_file"],
        PROVIDED_AS_VARIABLE: values["shape"],
        "FINEGRAIN_CPU_MILLI": values["cpu_milli"],
        "FINEGRAIN_MEMORY_BYTES": values["memory_bytes"],
        "FINEGRAIN_LABELS": values["labels"],
        "FINEGRAIN_HANDLE": values[HANDLE],
        "FINEGRAIN_EXECUTOR__EXECUTOR_ID": values["executor_id"],
        "FINEGRAIN_EXECUTOR__MANAGER": values["resource_manager"],
        "FINEGRAIN_EXECUTOR__JOIN_TOKEN_FILE": values["token_file"],
        "FINEGRAIN_EXECUTOR__LABELS": values["labels"],
    }
    # When the shape is no longer configured, only stop commands run. Stop commands need no
    # configuration of an executor.
    if own is None:
        return environment
    environment["FINEGRAIN_EXECUTOR__DEFAULT_SLOT_FRACTION"] = str(own.default_slot_fraction)
    environment["FINEGRAIN_EXECUTOR__SLOTS_MAX"] = str(own.shape.slots_max)
    countable = [
        f"{name.removeprefix(EXTENDED_PREFIX)}={amount}"
        for name, amount in own.shape.total.items()
        if name.startswith(EXTENDED_PREFIX)
    ]
    if countable:
        environment["FINEGRAIN_EXECUTOR__EXTENDED"] = ",".join(countable)
    return environment
