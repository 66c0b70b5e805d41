"""Finds what would let a request fit on a host that has the amounts but not suitable cpus or NUMA
nodes.

The answers are policies that would have to be preferred instead of required, fewer cpus, or the end
of a few slots. Each change is tried on a copy of the host's cpu ledger, by the same code that
places slots. Tries are limited, so a change that is not reported may still help.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from finegrain.cpu_policy import PLAIN, BindPolicy, CpuPolicy, ExclusivePolicy, QosClass
from finegrain.resources import CPU_MILLI, Amounts
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

MILLI_PER_CPU = 1000

FEWER_TRIED_MAX = 12
"""How many smaller numbers of cpus are tried on one host."""

CPU_LIMIT = "cpu_limit_milli"

ENDS_TRIED_MAX = 64
"""How often the end of slots is tried on one host."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A change of a request that makes it fit: policies ("bind", "exclusive", "numa", "qos") that
    give way, or lower amounts.
    """

    relaxed: tuple[str, ...] = ()
    # dimension, requested amount, amount that would fit
    at_most: tuple[tuple[str, int, int], ...] = ()
    text: str = ""  # completes "it fits if ..."


def relaxations(host: Host, scheduling_class: SchedulingClass) -> list[Relaxation]:
    """Returns the smallest changes that make a request fit on a host that has the amounts.

    Each change helps on its own. The result is empty if the request fits as it is, or if no tried
    change helps.
    """
    ledger = host.cpus
    if ledger is None:
        return []
    policy, limit = scheduling_class.cpus or (PLAIN, 0)
    request = CpuRequest.of(policy, host.booking_for(scheduling_class), limit)
    if not _refused(ledger, request):
        return []
    found = list(_preferred(ledger, request))
    found += _lower_amounts(ledger, request)
    if not found and policy.qos.is_pinned:
        shared = replace(request, policy=_shared(policy))
        if not _refused(ledger, shared):
            text = f"it ran in the shared pool (qos {QosClass.LS})"
            found.append(Relaxation(("qos",), text=text))
    return found


def fits_smaller(host: Host, scheduling_class: SchedulingClass, booking: Amounts) -> bool:
    """Returns True if the host's cpus and NUMA nodes suit a request that books less than its class.

    Args:
        host: the host.
        scheduling_class: what the request asks for.
        booking: the lower amounts that it would book.
    """
    if host.cpus is None or not host.needs_topology(scheduling_class):
        return host.suits(scheduling_class)
    policy, limit = scheduling_class.cpus or (PLAIN, 0)
    return not _refused(
        host.cpus, CpuRequest.of(policy, booking, min(limit, booking.get(CPU_MILLI, 0)))
    )


class WithoutSlots:
    """Answers whether a request would fit if some slots of a host had ended."""

    def __init__(self, host: Host, scheduling_class: SchedulingClass) -> None:
        policy, limit = scheduling_class.cpus or (PLAIN, 0)
        self._request = CpuRequest.of(policy, host.booking_for(scheduling_class), limit)
        empty_pool = scheduling_class.best_effort and host.lacks_best_effort_pool
        self._ledger = host.cpus if empty_pool or host.needs_topology(scheduling_class) else None
        self.tries_left = ENDS_TRIED_MAX

    def fits_without(self, ended: Iterable[Slot]) -> bool:
        """Returns True if cpus and NUMA nodes suit the request without these slots.

        Always True where amounts alone decide. False once the tries are used up.
        """
        if self._ledger is None:
            return True
        if not self.tries_left:
            return False
        self.tries_left -= 1
        scratch = self._ledger.scratch()
        for slot in ended:
            scratch.remove((slot.allocation_id, slot.generation))
        return not _refused(scratch, self._request)


def _preferred(ledger: CpuLedger, request: CpuRequest) -> Iterator[Relaxation]:
    """Yields policies that would have to be preferred: each one that helps alone, else all
    together.
    """
    policy = request.policy
    required = required_policies(policy)
    helped = False
    for name in required:
        if not _refused(ledger, replace(request, policy=with_preferred(policy, [name]))):
            helped = True
            yield Relaxation((name,), text=f"{name} were preferred instead of required")
    if helped or len(required) < 2:
        return
    if not _refused(ledger, replace(request, policy=with_preferred(policy, required))):
        names = f"{', '.join(required[:-1])} and {required[-1]}"
        yield Relaxation(tuple(required), text=f"{names} were preferred instead of required")


def required_policies(policy: CpuPolicy) -> list[str]:
    """Returns the names of the required policies, ordered by how often they are the obstacle."""
    strengths = (
        ("numa", policy.numa_required),
        ("bind", policy.bind_required),
        ("exclusive", policy.exclusive_required),
    )
    return [name for name, is_required in strengths if is_required]


def with_preferred(policy: CpuPolicy, names: Iterable[str]) -> CpuPolicy:
    """Returns the policy with these parts preferred instead of required."""
    for name in names:
        match name:
            case "numa":
                policy = replace(policy, numa_required=False)
            case "bind":
                policy = replace(policy, bind_required=False)
            case _:
                policy = replace(policy, exclusive_required=False)
    return policy


def _shared(policy: CpuPolicy) -> CpuPolicy:
    return replace(
        policy,
        qos=QosClass.LS,
        bind=BindPolicy.DEFAULT,
        bind_required=False,
        exclusive=ExclusivePolicy.DEFAULT,
        exclusive_required=False,
    )


def _lower_amounts(ledger: CpuLedger, request: CpuRequest) -> Iterator[Relaxation]:
    """Yields for each dimension the largest of the tried amounts that fits."""
    for name, requested in request.amounts:
        dedicated = name == CPU_MILLI and request.policy.qos.is_pinned
        for amount in (
            _fewer_cpus(ledger, requested) if dedicated else _on_one_node(ledger, name, requested)
        ):
            smaller = replace(request, amounts=_with(request.amounts, name, amount))
            if not _refused(ledger, smaller):
                fewer = (requested - amount) // MILLI_PER_CPU
                title = f"{fewer} cpu{'s' if fewer > 1 else ''} fewer: " if dedicated else ""
                yield Relaxation(
                    at_most=((name, requested, amount),), text=f"{title}{name} <= {amount}"
                )
                break
    if request.policy.bind is BindPolicy.CONSTRAINED_BURST and request.cpu_limit_milli:
        for limit in _on_one_node(ledger, CPU_MILLI, request.cpu_limit_milli):
            if not _refused(ledger, replace(request, cpu_limit_milli=limit)):
                change = (CPU_LIMIT, request.cpu_limit_milli, limit)
                yield Relaxation(at_most=(change,), text=f"{CPU_LIMIT} <= {limit}")


def _fewer_cpus(ledger: CpuLedger, requested: int) -> list[int]:
    """Returns smaller amounts of dedicated cpu to try, largest first, in thousandths of a cpu."""
    cpus = requested // MILLI_PER_CPU
    room = ledger.pin_room()
    tried = {room.cpus, room.whole_core_cpus, room.whole_cores, room.most_on_a_node}
    tried |= {cpus - less for less in range(1, FEWER_TRIED_MAX - len(tried) + 1)}
    return [count * MILLI_PER_CPU for count in sorted(tried, reverse=True) if 0 < count < cpus]


def _on_one_node(ledger: CpuLedger, name: str, requested: int) -> list[int]:
    """Returns what the NUMA node with the most left of a dimension has, if that is less than
    requested.
    """
    if not ledger.reports(name):
        return []
    most = max(ledger.available(at, name) for at in range(len(ledger.layout.nodes)))
    return [most] if 0 < most < requested else []


def _with(
    amounts: tuple[tuple[str, int], ...], name: str, amount: int
) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((dict(amounts) | {name: amount}).items()))


def _refused(ledger: CpuLedger, request: CpuRequest) -> bool:
    return isinstance(assign(ledger, request), CpuRefusal)
