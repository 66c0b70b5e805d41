"""Reads the providers' file, which has the shapes of executors, the providers of these shapes, and
all limits.

The result has two parts: the settings that the engine needs (`engine/model/settings.py:
Provisioning`), and the settings of each provider, decoded by the provider's kind.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import nextafter
from pathlib import Path
from typing import Any

from finegrain.config_table import ConfigTable
from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.ids import ID_PATTERN
from finegrain.resources import (
    CPU_MILLI,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    Amounts,
    ResourceProfile,
    round_down,
)
from finegrain.rpc.addresses import check_dialable
from resource_manager.engine.model.settings import SECOND_MS, ExecutorShape, Provisioning
from resource_manager.providers.provider import (
    ConfiguredShape,
    Provider,
    ProviderContext,
    ProviderKind,
    ReadShape,
)
from resource_manager.providers.registry import built_in_kinds, find_kind, installed_names

SHAPE_NAME_LENGTH_MAX = 48
LOOK_INTERVAL_MS = 5 * SECOND_MS


@dataclass(frozen=True, slots=True)
class ProvidersConfiguration:
    """The decoded file. Without shapes, no executors are requested.

    Attributes:
        file: the path of the file, or None if there is no file.
        provisioning: settings for the engine.
        managers: addresses at which executors register. If there are none, executors register at
            the address of this resource manager.
        look_interval_ms: interval at which the resource manager gets the status of executors from
            providers.
        common: for each provider, the decoded table that its shapes share.
        shapes: the shapes of each provider.
    """

    file: Path | None = None
    provisioning: Provisioning = field(default_factory=Provisioning)
    managers: tuple[str, ...] = ()
    look_interval_ms: int = LOOK_INTERVAL_MS
    common: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, tuple[ConfiguredShape, ...]] = field(default_factory=dict)


def read_providers(file: Path) -> ProvidersConfiguration:
    """Reads and checks the whole file.

    Raises:
        ConfigurationError: the file cannot be read or has an invalid value. The error describes the
            first problem, with file, field, value and the expected values.
    """
    top = ConfigTable(_content(file), file)
    managers = tuple(top.words("manager", ()))
    for address in managers:
        try:
            check_dialable(address, "manager")
        except InvalidArgument as error:
            top.wrong("manager", address, error.expected)
    look_interval_ms = top.duration_ms("look_interval", LOOK_INTERVAL_MS, least_ms=100)
    kinds = built_in_kinds()
    shapes = _shapes(top, kinds)
    # Decode the common tables after the shapes, because `_shapes` adds the kinds of installed
    # providers to `kinds`.
    common = {name: kind.read_common(top.table(name)) for name, kind in kinds.items()}
    provisioning = _limits(top.table("limits"), tuple(each.shape for each in shapes))
    top.end()
    by_provider = {
        name: tuple(each for each in shapes if each.shape.provider == name) for name in kinds
    }
    for name, kind in kinds.items():
        own = {each.shape.name: each.settings for each in by_provider[name]}
        # Call `check` last, because it can inspect the host, and errors in the file itself must be
        # reported first.
        kind.check(common[name], own, file)
    return ProvidersConfiguration(
        file, provisioning, managers, look_interval_ms, common, by_provider
    )


def no_providers() -> ProvidersConfiguration:
    """Returns the configuration for the case that there is no file: no executors are requested."""
    nothing = ConfigTable({}, Path())
    # Each kind decodes an empty table, so that its defaults are in only one place.
    common = {
        name: kind.read_common(nothing.table(name)) for name, kind in built_in_kinds().items()
    }
    return ProvidersConfiguration(common=common)


def make_providers(read: ProvidersConfiguration, context: ProviderContext) -> dict[str, Provider]:
    """Creates all providers of the file. Returns them by name.

    The built-in providers are always created, so that they can stop executors of an earlier
    configuration.

    Raises:
        ConfigurationError: a provider cannot work on this host.
    """
    return {
        name: find_kind(name).make(common, read.shapes.get(name, ()), context)
        for name, common in read.common.items()
    }


def _content(file: Path) -> dict[str, Any]:
    details = {"file": file}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"the providers file {file} cannot be read: {error.strerror}", details=details
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the providers file {file} is not TOML: {error}", details=details
        ) from None


def _shapes(top: ConfigTable, kinds: dict[str, ProviderKind]) -> list[ConfiguredShape]:
    shapes: list[ConfiguredShape] = []
    for table in top.tables("shape"):
        name = table.text("name")
        if not ID_PATTERN.fullmatch(name) or len(name) > SHAPE_NAME_LENGTH_MAX:
            table.wrong(
                "name",
                name,
                f"1 to {SHAPE_NAME_LENGTH_MAX} characters out of A-Z a-z 0-9 . _ - that start with "
                "a letter or digit",
            )
        if any(each.shape.name == name for each in shapes):
            table.wrong("name", name, "each name only once")
        # The errors of the code below name the shape, because the name helps people more than the
        # shape's number in the file.
        table.path = f"shape {name}"
        # Each provider decodes its own table. All other keys of a shape have the same meaning for
        # every provider.
        provider = table.choice("provider", installed_names())
        kind = kinds.get(provider) or kinds.setdefault(provider, find_kind(provider))
        own = table.table(provider, path=f"shape {name}.{provider}")
        read = kind.read_shape(own, name)
        own.end()
        shapes.append(_shape(table, name, provider, read))
        table.end()
    if not shapes:
        raise ConfigurationError(
            f"{top.file}: there is no [[shape]]; define at least one kind of executor that can be "
            "started, or remove providers_file from the configuration",
            details={"file": top.file, "field": "shape"},
        )
    return shapes


def _shape(table: ConfigTable, name: str, provider: str, read: ReadShape) -> ConfiguredShape:
    total = _total(table, read)
    fraction = _fraction(table, total)
    count_max = table.integer("count_max", 0)
    if "count_max" in table and not count_max:  # 0 looks like "none", but would mean "no limit"
        table.wrong("count_max", 0, "1 or more; without it there is no limit")
    if read.count_max:
        # The provider cannot exceed its own limit, such as the number of shares. The administrator
        # can only lower this limit.
        count_max = min(count_max or read.count_max, read.count_max)
    # executors also read the fraction as a decimal number, so 0.1 is exactly a tenth
    exact = Fraction(str(fraction))
    default = ResourceProfile(
        # Round down in the same way as the executor, so that the planned profile is equal to the
        # registered profile.
        cpu_milli=int(total.get(CPU_MILLI, 0) * exact),
        task_heap_memory_bytes=round_down(
            int(total.get(MEMORY_BYTES, 0) * exact), MEMORY_GRAIN_BYTES
        ),
    )
    shape = ExecutorShape(
        name=name,
        provider=provider,
        total=total,
        default_profile=default,
        labels=table.labels("labels"),
        slots_max=table.integer("slots_max", 0),
        cost=table.number("cost", 1.0),
        count_max=count_max,
        start_timeout_ms=table.duration_ms("start_timeout", 120 * SECOND_MS, least_ms=SECOND_MS),
    )
    return ConfiguredShape(shape, read.settings, fraction)


def _total(table: ConfigTable, read: ReadShape) -> Amounts:
    total: Amounts
    if read.total is None:
        total = _amounts(table.table("total"), required=True)
    elif "total" in table:
        total = _amounts(table.table("total"), required=True)
        extended = {k: v for k, v in total.items() if k.startswith(EXTENDED_PREFIX)}
        # The administrator is allowed to add countable resources to a total that the provider
        # determines.
        if total != {**read.total, **extended}:
            table.wrong(
                "total",
                _shown(total),
                f"{_shown(read.total)}, as the shares have, or no total",
            )
    else:
        total = read.total
    # Round down as executors do. The plan must not promise more than executors will register.
    return {**total, MEMORY_BYTES: round_down(total.get(MEMORY_BYTES, 0), MEMORY_GRAIN_BYTES)}


def _amounts(table: ConfigTable, *, required: bool = False) -> dict[str, int]:
    amounts: dict[str, int] = {}
    if required or "cpu" in table:
        amounts[CPU_MILLI] = table.cpu("cpu")
    if required or "memory" in table:
        amounts[MEMORY_BYTES] = table.size("memory")
    for name, count in table.counts("extended").items():
        amounts[EXTENDED_PREFIX + name] = count
    table.end()
    for key, name in (("cpu", CPU_MILLI), ("memory", MEMORY_BYTES)):
        if required and not amounts[name]:
            table.wrong(key, 0, "more than 0")
    return amounts


def _fraction(table: ConfigTable, total: Amounts) -> float:
    """Returns the default slot's fraction of an executor, computed as the executor does.

    The default is one slot per whole core, so that the planned size does not depend on the number
    of threads per core.
    """
    # An executor with less than one core has one default slot.
    whole_cores = max(1, total.get(CPU_MILLI, 0) // 1000)
    per_core = 1 / whole_cores
    # Round up if the float is below the exact fraction. Otherwise 1/3 of 3000 milli would become
    # 999.
    if Fraction(str(per_core)) < Fraction(1, whole_cores):
        per_core = nextafter(per_core, 1)
    fraction = table.number("default_slot_fraction", per_core)
    if not 0 < fraction <= 1:
        table.wrong("default_slot_fraction", fraction, "more than 0 and at most 1")
    return fraction


def _limits(table: ConfigTable, shapes: tuple[ExecutorShape, ...]) -> Provisioning:
    least = _amounts(table.table("min"))
    most = _amounts(table.table("max"))
    for name, amount in least.items():
        if amount > most.get(name, amount):  # without a maximum, every minimum is valid
            table.wrong("min", _shown(least), f"no more than max ({_shown(most)})")
    defaults = Provisioning()
    provisioning = Provisioning(
        shapes=shapes,
        total_min=least,
        total_max=most,
        idle_timeout_ms=table.duration_ms("idle_timeout", defaults.idle_timeout_ms),
        provided_lost_timeout_ms=table.duration_ms(
            "lost_timeout", defaults.provided_lost_timeout_ms
        ),
        plan_interval_ms=table.duration_ms("plan_interval", defaults.plan_interval_ms, least_ms=10),
        planned_requests_max=table.integer(
            "planned_requests_max", defaults.planned_requests_max, least=1
        ),
        backoff_min_ms=table.duration_ms("backoff_min", defaults.backoff_min_ms, least_ms=1),
        backoff_max_ms=table.duration_ms("backoff_max", defaults.backoff_max_ms, least_ms=1),
    )
    if provisioning.backoff_max_ms < provisioning.backoff_min_ms:
        table.wrong("backoff_max", f"{provisioning.backoff_max_ms}ms", "at least backoff_min")
    table.end()
    return provisioning


def _shown(amounts: Amounts) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items())) or "nothing"
