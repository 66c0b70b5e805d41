"""Whether some host could serve a scheduling class, now or when empty.

Asks the index, so that not every host is looked at, and `fit.py` about the hosts that it offers.
What hosts could serve when empty is cached with the class until the size, labels or availability of
a host changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain, islice

from finegrain.resources import Amounts
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.hosts.host import KNOWN, ONLINE, Host
from resource_manager.engine.model.scheduling_key import Labels
from resource_manager.engine.placement.constraint import Blocker, HostView
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.fit import CPUS, LABELS, Fit
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import Need
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.reserved import Reservation, Reservations
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

ASKED_MAX = 64
"""Hosts that are asked at most whether their cpus and NUMA nodes suit, to tell why somebody waits.
"""


class Feasibility(StrEnum):
    """What the sizes of the hosts say about a shape, whatever is free now."""

    POSSIBLE = "POSSIBLE"  # some executor could serve it when empty
    OFFLINE = "OFFLINE"  # only lost, draining or unreachable executors could
    LABELS = "LABELS"  # only executors without the labels could
    NEVER = "NEVER"  # no executor could


INFEASIBLE = frozenset({Feasibility.LABELS, Feasibility.NEVER})
"""Verdicts with which a request is rejected, unless it allows to wait."""


def feasibility(hosts: Hosts, elastic: Elastic, scheduling_class: SchedulingClass) -> Feasibility:
    """What the sizes of the hosts say, and of those that can be asked for; the indexes must be
    fresh.
    """
    version = hosts.version
    if scheduling_class.verdict is not None and scheduling_class.verdict[0] == version:
        return Feasibility(scheduling_class.verdict[1])
    verdict = _feasibility(hosts, elastic, scheduling_class)
    scheduling_class.verdict = (version, verdict)
    return verdict


def _feasibility(hosts: Hosts, elastic: Elastic, scheduling_class: SchedulingClass) -> Feasibility:
    if not hosts and not elastic.provisioning:
        return Feasibility.POSSIBLE  # none has registered yet, and one may at any moment
    if elastic.shapes and elastic.fits_a_shape(scheduling_class):
        return Feasibility.POSSIBLE  # such an executor can be ordered
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
        scheduling_class: the class; its own labels are ignored.
        labels: what the host must carry.
        prefix: of index columns: of hosts that are online, or of all that are known.
    """
    needs: list[Need] = [
        {prefix + name: amount for name, amount in need.items()}
        for need in (scheduling_class.pooled_need, scheduling_class.separate_need)
    ]
    if not is_exact_somewhere(hosts, scheduling_class):
        return some_host_covers(hosts, labels, needs)  # amounts decide, and the index has those
    fit = Fit(scheduling_class)

    def could(host: Host) -> bool:
        online = prefix == KNOWN or host.online
        return online and fit.size_obstacle(HostView.empty(host), besides=(LABELS,)) is None

    likely: Iterable[str] = hosts
    if scheduling_class.policy.topology_constrained and scheduling_class.profile is not None:
        # The cpus of all hosts of a kind suit, or none. (Default slots differ within a kind.)
        kinds = [
            names
            for names in hosts.indexes.kinds.values()
            if CPUS.obstacle(scheduling_class, HostView.empty(hosts[next(iter(names))])) is None
        ]
        likely = chain.from_iterable(kinds)
    return _some_host(hosts, labels, needs, likely, could)


def some_host_covers(hosts: Hosts, labels: Labels, needs: list[Need]) -> bool:
    """Returns True if some host with these labels covers one of these needs."""
    index = hosts.indexes.of(labels)
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
    """Returns True if some host serves. Goes through two lists at the same time, since either may
    be short: hosts that cover a need, and those that carry the labels or are likely to serve.

    Args:
        hosts: all hosts.
        labels: what the host must carry.
        needs: what it must cover, in columns of the index; one of them.
        likely: hosts; no other one serves.
        serves: whether a host that carries the labels does.
    """
    index = hosts.indexes.of(labels)
    if labels and index is hosts.indexes.main:
        likely = hosts.indexes.carriers(labels)
    for at, name in zip(index.covering(needs), likely, strict=False):
        for host in (hosts[index.ids[at]], hosts[name]):
            if carries(host, labels) and serves(host):
                return True
    return False


def free_sums(hosts: Hosts, scheduling_class: SchedulingClass) -> Amounts:
    """What all hosts together have free that carry the labels of a shape."""
    index = hosts.indexes.of(scheduling_class.labels)
    if not scheduling_class.labels or index is not hosts.indexes.main:
        return index.sums
    carriers = [index.position[name] for name in hosts.indexes.carriers(scheduling_class.labels)]
    pooled, separate = scheduling_class.amounts
    asked = pooled.keys() | separate.keys()
    return {
        name: sum(index.columns[name][0][at] for at in carriers)
        for name in asked & index.columns.keys()
    }


def has_room(hosts: Hosts, scheduling_class: SchedulingClass) -> bool:
    """True if some host has room for one now, whether or not it would take it; the indexes must be
    fresh. Of hosts that have to be asked only so many are: whoever waits has asked them all.
    """
    needs: list[Need] = [scheduling_class.pooled_need, scheduling_class.separate_need]
    if not is_exact_somewhere(hosts, scheduling_class):
        return some_host_covers(hosts, scheduling_class.labels, needs)
    index = hosts.indexes.of(scheduling_class.labels)
    asked = 0
    for at in index.covering(needs):
        host = hosts[index.ids[at]]
        if index is hosts.indexes.main and not carries(host, scheduling_class.labels):
            continue
        if CPUS.obstacle(scheduling_class, HostView.now(host)) is None:
            return True
        asked += 1
        if asked == ASKED_MAX:
            return False
    return False


def is_exact_somewhere(hosts: Hosts, scheduling_class: SchedulingClass) -> bool:
    """True if there are hosts of which amounts do not say whether one fits."""
    return scheduling_class.topology_constrained or bool(hosts.indexes.aligning)


def large_and_unsuited(
    hosts: Hosts, scheduling_class: SchedulingClass
) -> tuple[Host, CpuRefusal] | None:
    """A host that has the amounts when empty, and whose cpus or NUMA nodes do not suit then; the
    first one, of those that tell what their cpus are made of if there is any.
    """
    if not is_exact_somewhere(hosts, scheduling_class):
        return None
    amounts = [
        {KNOWN + name: amount for name, amount in need.items()} for need in scheduling_class.amounts
    ]
    index, fit = hosts.indexes.main, Fit(scheduling_class)
    covering = (hosts[index.ids[at]] for at in index.covering(amounts))
    large = [host for host in islice(covering, ASKED_MAX) if carries(host, scheduling_class.labels)]
    for host in sorted(large, key=lambda host: host.cpus is None):
        obstacle = fit.size_obstacle(HostView.empty(host))
        if obstacle is not None and obstacle.cpu_refusal is not None:
            return host, obstacle.cpu_refusal
    return None


def blocking_reservations(
    hosts: Hosts, reservations: Reservations, scheduling_class: SchedulingClass
) -> Iterator[Reservation]:
    """Yields the reservations without which a request of the class would fit somewhere."""
    fit = Fit(scheduling_class)
    for each in reservations.all():
        reserved = (hosts[name] for name in each.place.held if name in hosts)
        if any(fit.verdict(HostView.now(host)).blockers == (Blocker.HELD,) for host in reserved):
            yield each
