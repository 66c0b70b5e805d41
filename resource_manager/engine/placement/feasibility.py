"""Finds out whether some host could serve a scheduling class now, or could serve it when empty.

The capacity index selects hosts, and `fit.py` compares only these hosts with the request. The
result for empty hosts is cached in the scheduling class until the size, labels or availability of a
host changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain, islice
from typing import cast

from finegrain.resources import MEMORY_BYTES, Amounts
from resource_manager.engine.hosts.host import KNOWN, ONLINE, Host
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.scheduling_key import Labels, from_grains, in_grains
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.constraint import Blocker, HostView
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.fit import CPUS, LABELS, Fit
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import Need
from resource_manager.engine.placement.reserved import Reservation, Reservations
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

HOSTS_CHECKED_MAX = 64
"""To explain why one request waits, the cpus and NUMA nodes of at most this many hosts are
checked.
"""


class Feasibility(StrEnum):
    """Describes whether a host could serve a scheduling class when empty."""

    POSSIBLE = "POSSIBLE"  # some executor could serve the class when empty
    OFFLINE = "OFFLINE"  # only lost, draining or unreachable executors could serve the class
    LABELS = "LABELS"  # only executors without the required labels could serve the class
    NEVER = "NEVER"  # no executor could ever serve the class


INFEASIBLE = frozenset({Feasibility.LABELS, Feasibility.NEVER})
"""If the result is one of these, the engine rejects the request, unless the request has
`allow_pending`.
"""


def feasibility(hosts: Hosts, elastic: Elastic, scheduling_class: SchedulingClass) -> Feasibility:
    """Returns whether an executor could serve a class when empty. This can be a registered
    executor, or an executor that can be requested. The indexes must be up to date.

    Args:
        hosts: all hosts.
        elastic: the executors that can be requested.
        scheduling_class: the class. The function also caches the result in the class.
    """
    version = hosts.version
    if scheduling_class.verdict is not None and scheduling_class.verdict[0] == version:
        # A call of the enum would take longer than all other checks of a request.
        return cast("Feasibility", scheduling_class.verdict[1])
    verdict = _feasibility(hosts, elastic, scheduling_class)
    scheduling_class.verdict = (version, verdict)
    return verdict


def _feasibility(hosts: Hosts, elastic: Elastic, scheduling_class: SchedulingClass) -> Feasibility:
    if not hosts and not elastic.provisioning:
        # No executor has registered yet, but an executor can register at any moment.
        return Feasibility.POSSIBLE
    if elastic.shapes and elastic.fits_a_shape(scheduling_class):
        return Feasibility.POSSIBLE  # an executor that fits can be requested
    labels = scheduling_class.labels
    if _some_host_could(hosts, scheduling_class, labels, ONLINE):
        return Feasibility.POSSIBLE
    if _some_host_could(hosts, scheduling_class, labels, KNOWN):
        return Feasibility.OFFLINE
    if labels and (
        _some_host_could(hosts, scheduling_class, (), KNOWN)
        or elastic.fits_a_shape(scheduling_class, labels=False)
    ):
        return Feasibility.LABELS
    return Feasibility.NEVER


def _some_host_could(
    hosts: Hosts, scheduling_class: SchedulingClass, labels: Labels, prefix: str
) -> bool:
    """Returns True if some host with these labels could serve a class when empty.

    Args:
        hosts: all hosts.
        scheduling_class: the class; the function ignores the labels of the class and uses `labels`.
        labels: labels that the host must carry.
        prefix: prefix of the index columns: `ONLINE` to consider hosts that are online, `KNOWN` to
            consider all hosts.
    """
    needs: list[Need] = [
        {prefix + name: amount for name, amount in need.items()}
        for need in needs_of(scheduling_class).kinds
    ]
    if not needs_topology_somewhere(hosts, scheduling_class):
        # Amounts alone decide for this class, and the index has all amounts.
        return some_host_covers(hosts, labels, needs)
    fit = Fit(scheduling_class)

    def could(host: Host) -> bool:
        online = prefix == KNOWN or host.online
        return online and fit.size_obstacle(HostView.empty(host), besides=(LABELS,)) is None

    likely: Iterable[str] = hosts
    if scheduling_class.policy.topology_constrained and scheduling_class.profile is not None:
        # All hosts of a kind have equal cpus, so a check of one host is enough. But hosts of one
        # kind can have different default profiles, so for default slots each host is checked.
        kinds = [
            names
            for names in hosts.indexes.kinds.values()
            if CPUS.obstacle(scheduling_class, HostView.empty(hosts[next(iter(names))])) is None
        ]
        likely = chain.from_iterable(kinds)
    return _some_host(hosts, labels, needs, likely, could)


def some_host_covers(hosts: Hosts, labels: Labels, needs: list[Need]) -> bool:
    """Returns True if some host with these labels meets at least one of the needs.

    Args:
        hosts: all hosts.
        labels: labels that the host must carry.
        needs: alternative needs, in columns of the index. A host must meet one of them.
    """
    index = hosts.indexes.of(labels)
    # The labels need no check in two cases: no label is required, or the index contains only hosts
    # with the labels.
    if not labels or index is not hosts.indexes.main:
        return next(index.covering_by_block(needs), None) is not None

    def covers(host: Host) -> bool:
        return any(index.covers(index.position[host.host_id], need) for need in needs)

    return _some_host(hosts, labels, needs, hosts, covers)


def _some_host(
    hosts: Hosts,
    labels: Labels,
    needs: list[Need],
    likely: Iterable[str],
    serves: Callable[[Host], bool],
) -> bool:
    """Returns True if some host can serve a request.

    A host that serves the request must be in each of two lists: the hosts that meet a need, and the
    hosts of `likely`. So it is enough to read the shorter list to its end. The lengths of the lists
    are unknown, so both lists are read in parallel.

    Args:
        hosts: all hosts.
        labels: labels that the host must carry.
        needs: alternative needs, in columns of the index. The host must meet one of them.
        likely: the ids of some hosts. All other hosts certainly cannot serve the request.
        serves: a function that returns whether a host with the labels can serve the request.
    """
    index = hosts.indexes.of(labels)
    if labels and index is hosts.indexes.main:
        likely = hosts.indexes.carriers(labels)
    for at, name in zip(index.covering(needs), likely, strict=False):
        # Check the next host of each list.
        for host in (hosts[index.ids[at]], hosts[name]):
            if host.carries(labels) and serves(host):
                return True
    return False


def free_sums(hosts: Hosts, scheduling_class: SchedulingClass) -> Amounts:
    """Returns the sum of the free capacity of all hosts with the labels of a class."""
    index = hosts.indexes.of(scheduling_class.labels)
    if not scheduling_class.labels or index is not hosts.indexes.main:
        return index.sums
    carriers = [index.position[name] for name in hosts.indexes.carriers(scheduling_class.labels)]
    pooled, separate = needs_of(scheduling_class).amounts
    names = pooled.keys() | separate.keys()
    return {
        name: sum(index.columns[name][0][at] for at in carriers)
        # The result leaves out a column that no host has, and the column counts as 0.
        for name in names & index.columns.keys()
    }


def has_room(hosts: Hosts, scheduling_class: SchedulingClass) -> bool:
    """Returns True if some host has room for a request of a class now. A host counts even if it
    refused an equal slot recently. The indexes must be up to date.

    If cpus and NUMA nodes must be checked, at most `HOSTS_CHECKED_MAX` hosts are checked. This is
    enough, because callers use the result only to explain why a request waits.
    """
    needs: list[Need] = [*needs_of(scheduling_class).kinds]
    if not needs_topology_somewhere(hosts, scheduling_class):
        return some_host_covers(hosts, scheduling_class.labels, needs)
    index = hosts.indexes.of(scheduling_class.labels)
    checked = 0
    for at in index.covering(needs):
        host = hosts[index.ids[at]]
        if index is hosts.indexes.main and not host.carries(scheduling_class.labels):
            continue
        if CPUS.obstacle(scheduling_class, HostView.now(host)) is None:
            return True
        checked += 1
        if checked == HOSTS_CHECKED_MAX:
            return False
    return False


def needs_topology_somewhere(hosts: Hosts, scheduling_class: SchedulingClass) -> bool:
    """Returns True if there can be a host for which amounts alone do not decide whether a request
    of the class fits.
    """
    return scheduling_class.topology_constrained or bool(hosts.indexes.aligning)


def large_and_unsuited(
    hosts: Hosts, scheduling_class: SchedulingClass
) -> tuple[Host, HostRefusal] | None:
    """Returns a host that is large enough when empty, but has unsuitable cpus or NUMA nodes. Also
    returns the reason why the cpus or nodes are unsuitable.

    Hosts that report their cpus are checked first. At most `HOSTS_CHECKED_MAX` hosts are compared.
    """
    if not needs_topology_somewhere(hosts, scheduling_class):
        return None
    amounts = [
        {KNOWN + name: amount for name, amount in need.items()}
        for need in needs_of(scheduling_class).amounts
    ]
    index, fit = hosts.indexes.main, Fit(scheduling_class)
    covering = (hosts[index.ids[at]] for at in index.covering(amounts))
    large = [
        host
        for host in islice(covering, HOSTS_CHECKED_MAX)
        if host.carries(scheduling_class.labels)
    ]
    for host in sorted(large, key=lambda host: host.cpus is None):
        obstacle = fit.size_obstacle(HostView.empty(host))
        if obstacle is not None and obstacle.host_refusal is not None:
            return host, obstacle.host_refusal
    return None


def largest_on_one(hosts: Hosts, amounts: Amounts) -> dict[str, int]:
    """Returns the dimensions in which no single host has the requested amount. The value is the
    largest amount that one host has when empty.

    The indexes must be up to date.
    """
    index = hosts.indexes.main
    requested = in_grains(amounts)
    most = {name: index.most(KNOWN + name) for name in requested}
    short = {name: each for name, each in most.items() if each < requested[name]}
    # Leave out common memory of 0. A host with a separate pool for each memory part has no common
    # memory, but possibly has enough memory.
    return {name: each for name, each in from_grains(short).items() if each or name != MEMORY_BYTES}


def blocking_reservations(
    hosts: Hosts, reservations: Reservations, scheduling_class: SchedulingClass
) -> Iterator[Reservation]:
    """Yields each reservation that is the only obstacle for the request on a host.

    Args:
        hosts: all hosts.
        reservations: all reservations.
        scheduling_class: the class of the request.
    """
    fit = Fit(scheduling_class)
    for each in reservations.by_number.values():
        reserved = (hosts[name] for name in each.hosts if name in hosts)
        # If a host also has a different obstacle, the request would not fit on the host even
        # without the reservation.
        if any(fit.verdict(HostView.now(host)).blockers == (Blocker.HELD,) for host in reserved):
            yield each
