"""Computes the columns of the capacity index: the values that a host has, and the values that a
request needs.

Each constraint (`fit.py`) defines its columns, and a few more columns describe the host as a whole.
A column without a prefix contains the free amount of the host. The column with the prefix `KNOWN`
contains the amount that would be free if the host were empty. The column with the prefix `ONLINE`
equals the `KNOWN` column while the host is online, and is 0 otherwise.
"""

from __future__ import annotations

from functools import lru_cache

from finegrain.resources import Amounts
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import KNOWN, ONLINE, Host
from resource_manager.engine.hosts.scores import score_columns
from resource_manager.engine.model.scheduling_key import (
    ALIGNING,
    EMPTY,
    IN_USE,
    SLOTS,
    WITH_GPUS,
    WITHOUT_GPUS,
    Needs,
    kinds_of,
)
from resource_manager.engine.model.settings import Strategy
from resource_manager.engine.placement.constraint import HostView
from resource_manager.engine.placement.fit import CONSTRAINTS
from resource_manager.engine.placement.gpu_hosts import gpu_count
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

_BESIDES_AMOUNTS = frozenset(name for each in CONSTRAINTS for name in each.columns)
_PREFIXES = tuple(prefix for each in CONSTRAINTS for prefix in each.column_prefixes)

_SIZE_UNIT = 1 << 60

_KNOWN_MAX = 4_096
"""The largest number of cached kinds of empty hosts. A cluster has few kinds."""

_WITH_COLUMNS = tuple(each for each in CONSTRAINTS if each.has_columns)
_PREFERABLE = tuple(each for each in CONSTRAINTS if each.is_preferable)


def columns_of(host: Host, strategy: Strategy) -> dict[str, int]:
    """Returns all columns of a host."""
    # Each registration creates a new object, so a comparison of identities shows whether the cached
    # columns are current.
    if host.described is not host.executor.registration:
        _describe(host)
    # Copy the cached columns, because the following code adds columns that depend on bookings.
    columns = dict(host.columns_online if host.online else host.columns_known)
    # A host that is not eligible, or is being emptied, gets no columns of free capacity. So no
    # search for free capacity finds the host. The columns with the size of the host stay.
    if not host.takes_slots:
        return columns
    at = HostView.now(host)
    for constraint in _WITH_COLUMNS:
        columns.update(constraint.offers(at))
    columns[IN_USE], columns[EMPTY] = int(bool(host.slots)), int(not host.slots)
    if host.aligning:
        columns[ALIGNING] = 1
    columns[WITH_GPUS if gpu_count(host) else WITHOUT_GPUS] = 1
    columns.update(score_columns_of(host, strategy, columns))
    return columns


def score_columns_of(host: Host, strategy: Strategy, columns: dict[str, int]) -> dict[str, int]:
    """Returns the columns by which a placement strategy orders hosts. These columns are computed
    from the other columns of the host.
    """
    most = host.executor.registration.slots_max
    return score_columns(strategy, host.dimensions, columns, most, columns[SLOTS])


def is_amount(column: str) -> bool:
    """Returns True if the column contains an amount that slots book."""
    return column not in _BESIDES_AMOUNTS and not column.startswith(_PREFIXES)


def needs_of(scheduling_class: SchedulingClass) -> Needs:
    """Returns the index columns that a host needs to serve a request of a class."""
    if scheduling_class.needs is None:
        scheduling_class.needs = needs_for(scheduling_class)
    return scheduling_class.needs


def needs_for(request: ResourceRequest) -> Needs:
    """Returns the index columns that a host needs to serve a request."""
    (pooled, counted), (separate, counted_separate) = (
        _needs(request, separate_pools=each) for each in (False, True)
    )
    return Needs(
        pooled,
        separate,
        (counted, counted_separate),
        tuple(tuple(need.items()) for each in _PREFERABLE for need in each.preferred(request)),
        sum(each.never_met(request) for each in _PREFERABLE),
        kinds_of(pooled, separate),
    )


def size_of(scheduling_class: SchedulingClass, sums: Amounts) -> int:
    """Returns the size of a request relative to the cluster, in units of 2**-60. In each dimension,
    the function divides the needed amount by the total of all hosts. The result is the largest of
    these ratios.

    Example: a request needs 4 of 100 cpus (0.04), and 1 of 10 GiB of memory (0.1). Its size is 0.1.

    Args:
        scheduling_class: the scheduling class of the request.
        sums: the sum of each index column over all hosts. The function skips a column that no host
            has. Example: if all hosts have one common memory pool, the function skips the columns
            of memory parts.
    """
    return max(
        (
            amount * _SIZE_UNIT // whole
            for need in needs_of(scheduling_class).kinds
            for name, amount in need.items()
            if is_amount(name) and (whole := sums.get(KNOWN + name, 0))
        ),
        default=0,
    )


def _needs(
    request: ResourceRequest, *, separate_pools: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns two dicts: the needs in all columns, and the needs in those columns that can be
    compared with sums over hosts.
    """
    need: dict[str, int] = {}
    counted: dict[str, int] = {}
    for constraint in _WITH_COLUMNS:
        part = constraint.needs(request, separate_pools=separate_pools)
        need.update(part)
        if constraint.is_counted:
            counted.update(part)
    return need, counted


def _describe(host: Host) -> None:
    """Computes the columns that do not depend on bookings, and stores them with the host."""
    at = HostView.empty(host)
    empty: dict[str, int] = {}
    for constraint in _WITH_COLUMNS:
        empty.update(constraint.offers(at))
    host.columns_known, host.columns_online = _prefixed(tuple(empty.items()))
    host.described = host.executor.registration


@lru_cache(_KNOWN_MAX)
def _prefixed(columns: tuple[tuple[str, int], ...]) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the columns with the prefix `KNOWN`, and these columns together with those of the
    prefix `ONLINE`. Equal hosts share both dicts.
    """
    known = {KNOWN + name: amount for name, amount in columns}
    return known, known | {ONLINE + name: amount for name, amount in columns}
