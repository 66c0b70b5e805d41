"""Checks whether the cpus and NUMA nodes of a host are suitable for a slot. Cpus and nodes can be
unsuitable even if enough cpu and memory is free.

The check calls the code that also assigns cpus to slots (`cpus/assign.py`). The constraint proposes
three kinds of remedies: a policy that is preferred instead of required, fewer cpus, or less memory
on one node. The same code checks whether a remedy helps. Only a limited number of changes is tried,
so changes that were not tried can help, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.resources import CPU_MILLI, Amounts, ResourceProfile, shortfall
from finegrain.values.explanations import Dimension
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest, cpu_request_of
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.texts import amount_text
from resource_manager.engine.placement.constraint import (
    MILLION,
    NO_OBSTACLE,
    Blocker,
    Constraint,
    HostView,
    Obstacle,
    Remedy,
)
from resource_manager.engine.placement.device_constraint import DEVICES, is_about_devices
from resource_manager.engine.placement.neighbor_constraint import (
    NEIGHBORS,
    is_about_neighbors,
)

MILLI_PER_CPU = 1_000

FEWER_TRIED_MAX = 12
"""The largest number of lower cpu counts that are tried on one host."""

LOWERED_TRIED_MAX = 4
"""The largest number of cpu counts that are tried on a host with too little free capacity."""

CPU_LIMIT = "cpu_limit_milli"

PIN_CPUS = "pin.cpus"
"""Index column: the number of cpus that one more slot could have as dedicated cpus."""

PIN_CORE_CPUS = "pin.core_cpus"
"""Index column: how many of the `PIN_CPUS` cpus are on cores that are completely free. The column
is 0 if the host does not give whole cores to slots.
"""

PIN_CORES = "pin.cores"
"""Index column: the number of cores with at least one `PIN_CPUS` cpu. The column is 0 if the host
does not give slots one cpu of each core.
"""

PIN_NODE_CPUS = "pin.node_cpus"
"""Index column: the largest number of `PIN_CPUS` cpus on one NUMA node."""

NODE_CPU_MILLI = "node.cpu_milli"
"""Index column: the largest amount of cpu on one NUMA node that slots in shared pools can still
get.
"""

_COLUMNS = (PIN_CPUS, PIN_CORE_CPUS, PIN_CORES, PIN_NODE_CPUS, NODE_CPU_MILLI)


class CpusSuit(Constraint):
    """The host's cpus and NUMA nodes are suitable for a slot, together with its devices."""

    of_size = True
    costly = True
    has_columns = True
    is_preferable = True
    columns = _COLUMNS
    remedies_sought_on = 3

    def needs(self, request: ResourceRequest, *, separate_pools: bool) -> dict[str, int]:
        """See `Constraint`. A host that does not report its cores has none of these columns."""
        if request.cpus is None or request.profile is None:
            return {}
        return _cpu_need(request.profile, request.cpus[0])

    def offers(self, at: HostView) -> dict[str, int]:
        """See `Constraint`."""
        ledger = at.cpus()
        if ledger is None or ledger.time_shared:
            return {}
        room, demanded = ledger.pin_room(), ledger.policy.bind
        # If the host demands one bind policy, the column of the other policy is 0. So a search for
        # the other policy does not find the host.
        whole = demanded is not HostBindPolicy.SPREAD_BY_PCPUS
        apart = demanded is not HostBindPolicy.FULL_PCPUS_ONLY and ledger.layout.smt
        # Without SMT, each cpu is on its own core. But the column is 0 unless the host demands the
        # policy SPREAD_BY_PCPUS.
        apart |= demanded is HostBindPolicy.SPREAD_BY_PCPUS
        nodes = ledger.layout.cpu_nodes
        return {
            PIN_CPUS: room.cpus,
            PIN_CORE_CPUS: room.whole_core_cpus if whole else 0,
            PIN_CORES: room.cores if apart else 0,
            PIN_NODE_CPUS: room.most_on_a_node,
            NODE_CPU_MILLI: max(ledger.available(node, CPU_MILLI) for node in nodes),
        }

    def preferred(self, request: ResourceRequest) -> list[dict[str, int]]:
        """See `Constraint`."""
        if request.cpus is None:
            return []
        policy = request.cpus[0]
        stricter = _one_required(policy)
        # Slots start and end, so no column shows where a rule about neighbors can be met.
        neighbors = [rule for rule in policy.neighbors if not rule.required]
        if request.profile is None:
            # Each host has its own default slot, so no column shows whether a host can meet the
            # policy.
            return [{} for _ in (*stricter, *neighbors)]
        known = _cpu_need(request.profile, policy)
        needs = [_cpu_need(request.profile, each) for each in stricter]
        # Return only the columns that the preferred policy adds. The search also compares the needs
        # of the class itself.
        found = [{name: n for name, n in need.items() if name not in known} for need in needs]
        return found + [{} for _ in neighbors]

    def never_met(self, request: ResourceRequest) -> int:
        """Counts preferred policies that have no effect on slots of this QoS class. Some policies
        apply only to slots with dedicated cpus, and some only to slots without dedicated cpus.
        """
        if request.cpus is None:
            return 0
        policy = request.cpus[0]
        bound = policy.bind not in (BindPolicy.DEFAULT, BindPolicy.NONE)
        bursting = policy.bind is BindPolicy.CONSTRAINED_BURST
        if policy.qos.is_pinned:
            return int(bursting)
        exclusive = policy.exclusive not in (ExclusivePolicy.DEFAULT, ExclusivePolicy.NONE)
        return (bound and not (bursting and policy.qos is QosClass.LS)) + exclusive

    def matters_on(self, host: Host, request: ResourceRequest) -> bool:
        """See `Constraint`."""
        return host.needs_topology(request) or (request.best_effort and host.lacks_best_effort_pool)

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        host = at.host
        if not self.matters_on(host, request):
            return NO_OBSTACLE
        given: CpuAssignment | HostRefusal | None
        # The following cached results are valid only for the amounts of the request itself. Equal
        # bookings are one object, so a comparison of identities shows whether a remedy tries
        # different amounts.
        is_original = requested is host.booking_for(request)
        if is_original and at.is_now:  # cached; placement uses the same result
            given = host.assign(request)
        elif is_original and at.is_empty:  # hosts with equal cpus share the result
            given = host.never_suits(request)
        else:
            alone = at.without_neighbor(request)
            given = assign(at.cpus(), cpu_request_of(request, requested, alone))
        if not isinstance(given, HostRefusal):
            return NO_OBSTACLE
        # If the devices alone are unsuitable, `DevicesSuit` reports the obstacle.
        if is_about_devices(given) and DEVICES.obstacles(request, requested, at):
            return NO_OBSTACLE
        # If the rules about neighbors leave no cpu at all, `NearAndApart` reports the obstacle.
        if is_about_neighbors(given) and NEIGHBORS.obstacles(request, requested, at):
            return NO_OBSTACLE
        return (Obstacle(self, Blocker.TOPOLOGY, not given.lasting, 1, host_refusal=given),)

    def obstacle(self, request: ResourceRequest, at: HostView) -> Obstacle | None:
        """Returns the reason why a host does not meet the condition; None if the host meets the
        condition.
        """
        requested = at.host.booking_for(request)
        found = self.obstacles(request, requested, at) or NEIGHBORS.obstacles(
            request, requested, at
        )
        return next(iter(found), None)

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """See `Constraint`."""
        refusal = obstacle.host_refusal
        if refusal is None:
            return ""
        if refusal.blocker is CpuBlocker.CPU_NOT_ENOUGH and shortfall(requested, at.free):
            return ""  # `EnoughFree` already reports that too little is free
        return f"{refusal.blocker}: {refusal.text}"

    def remedies(
        self, request: ResourceRequest, at: HostView, settings: EngineSettings
    ) -> Iterator[Remedy]:
        """Yields changes of the request. Each change is sufficient by itself."""
        host, ledger = at.host, at.cpus()
        if ledger is None:
            return
        booked = host.booking_for(request)
        wanted = cpu_request_of(request, booked, at.without_neighbor(request))
        found = [*_preferred(ledger, wanted), *_lower_amounts(host, ledger, wanted)]
        yield from found
        shared = replace(wanted, policy=_shared(wanted.policy))
        # The largest change is to run without dedicated cpus, so this change is tried last.
        if not found and wanted.policy.qos.is_pinned and not _refused(ledger, shared):
            text = f"if it ran in the shared pool (qos {QosClass.LS})"
            yield Remedy(MILLION, text, relaxed=("qos",))


def required_policies(policy: CpuPolicy) -> list[str]:
    """Returns the names of the required policies. Policies that are often an obstacle come
    first.
    """
    strengths = (
        ("numa", policy.numa_required),
        ("bind", policy.bind_required),
        ("exclusive", policy.exclusive_required),
    )
    return [name for name, is_required in strengths if is_required]


def with_preferred(policy: CpuPolicy, names: Iterable[str]) -> CpuPolicy:
    """Returns a copy of the policy in which the named parts are preferred instead of required."""
    for name in names:
        match name:
            case "numa":
                policy = replace(policy, numa_required=False)
            case "bind":
                policy = replace(policy, bind_required=False)
            case _:
                policy = replace(policy, exclusive_required=False)
    return policy


def cpu_amounts_to_try(request: ResourceRequest, cpu_milli: int) -> list[int]:
    """Returns the cpu amounts to try on a host, largest first, in thousandths of a cpu. For
    dedicated cpus, these are at most `LOWERED_TRIED_MAX` whole numbers of cpus. For other requests,
    the only amount is `cpu_milli`.
    """
    if request.cpus is None or not request.cpus[0].qos.is_pinned:
        return [cpu_milli]
    cpus = cpu_milli // MILLI_PER_CPU
    return [count * MILLI_PER_CPU for count in range(cpus, max(cpus - LOWERED_TRIED_MAX, 0), -1)]


def _cpu_need(profile: ResourceProfile, policy: CpuPolicy) -> dict[str, int]:
    """Returns the lowest column values that a host must have because of the CPU policy."""
    one_node = policy.numa is NumaPolicy.SINGLE_NUMA_NODE and policy.numa_required
    if not policy.qos.is_pinned:
        # The column counts only normal cpu. Best-effort cpu is a separate dimension.
        lies_on_one = one_node and not policy.best_effort and profile.cpu_milli
        return {NODE_CPU_MILLI: profile.cpu_milli} if lies_on_one else {}
    cpus = -(-profile.cpu_milli // MILLI_PER_CPU)  # only whole cpus can be dedicated
    need = {PIN_CPUS: cpus}
    if policy.bind is BindPolicy.FULL_PCPUS and policy.bind_required:
        need[PIN_CORE_CPUS] = cpus
    if policy.bind is BindPolicy.SPREAD_BY_PCPUS and policy.bind_required:
        need[PIN_CORES] = cpus
    if one_node:
        need[PIN_NODE_CPUS] = cpus
    return need


def _one_required(policy: CpuPolicy) -> list[CpuPolicy]:
    """Returns one copy of the policy for each preferred part that has an effect. The copy requires
    this part.
    """
    dedicated, bind = policy.qos.is_pinned, policy.bind
    stricter = []
    by_core = dedicated and bind in (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)
    bursts = policy.qos is QosClass.LS and bind is BindPolicy.CONSTRAINED_BURST
    if (by_core or bursts) and not policy.bind_required:
        stricter.append(replace(policy, bind_required=True))
    exclusive = policy.exclusive not in (ExclusivePolicy.DEFAULT, ExclusivePolicy.NONE)
    if dedicated and exclusive and not policy.exclusive_required:
        stricter.append(replace(policy, exclusive_required=True))
    if policy.numa.aligns and not policy.numa_required:
        stricter.append(replace(policy, numa_required=True))
    return stricter


def _preferred(ledger: CpuLedger, wanted: CpuRequest) -> Iterator[Remedy]:
    """Yields remedies that make required policies preferred: one remedy for each policy whose
    change is sufficient by itself. If no single change is sufficient, yields one remedy that
    changes all required policies.

    These changes count as smaller than all changes of amounts.
    """
    required = required_policies(wanted.policy)
    helped = False
    for name in required:
        if not _refused(ledger, replace(wanted, policy=with_preferred(wanted.policy, [name]))):
            helped = True
            yield Remedy(1, f"if {name} were preferred instead of required", relaxed=(name,))
    if helped or len(required) < 2:  # the loop has already tried a single required policy
        return
    if not _refused(ledger, replace(wanted, policy=with_preferred(wanted.policy, required))):
        names = f"{', '.join(required[:-1])} and {required[-1]}"
        text = f"if {names} were preferred instead of required"
        yield Remedy(len(required), text, relaxed=tuple(required))


def _shared(policy: CpuPolicy) -> CpuPolicy:
    return replace(
        policy,
        qos=QosClass.LS,
        bind=BindPolicy.DEFAULT,
        bind_required=False,
        exclusive=ExclusivePolicy.DEFAULT,
        exclusive_required=False,
    )


def _lower_amounts(host: Host, ledger: CpuLedger, wanted: CpuRequest) -> Iterator[Remedy]:
    """Yields, for each dimension, a remedy with the largest tried amount that fits."""
    for name, requested in wanted.amounts:
        dedicated = name == CPU_MILLI and wanted.policy.qos.is_pinned
        for amount in (
            _fewer_cpus(ledger, requested) if dedicated else _on_one_node(ledger, name, requested)
        ):
            amounts = tuple(sorted((dict(wanted.amounts) | {name: amount}).items()))
            if not _refused(ledger, replace(wanted, amounts=amounts)):
                fewer = (requested - amount) // MILLI_PER_CPU
                fewer_text = f" ({fewer} fewer)" if dedicated else ""
                yield _at_most(host, name, requested, amount, fewer_text)
                break
    limit_milli = wanted.cpu_limit_milli
    if wanted.policy.bind is BindPolicy.CONSTRAINED_BURST and limit_milli:
        for limit in _on_one_node(ledger, CPU_MILLI, limit_milli):
            if not _refused(ledger, replace(wanted, cpu_limit_milli=limit)):
                yield _at_most(host, CPU_LIMIT, limit_milli, limit)


def _at_most(host: Host, name: str, requested: int, amount: int, fewer_text: str = "") -> Remedy:
    lower = Dimension(name, requested, amount, amount, host.total.get(name, 0))
    text = f"with at most {amount_text(name, amount)}{fewer_text}"
    return Remedy((requested - amount) * MILLION // requested, text, (lower,))


def _fewer_cpus(ledger: CpuLedger, requested: int) -> list[int]:
    """Returns lower amounts of dedicated cpu to try, largest first, in thousandths of a cpu."""
    cpus = requested // MILLI_PER_CPU
    room = ledger.pin_room()
    # The numbers of free cpus and cores are most likely to fit. The remaining tries go to the cpu
    # counts just below the requested count.
    tried = {room.cpus, room.whole_core_cpus, room.whole_cores, room.most_on_a_node}
    tried |= {cpus - less for less in range(1, FEWER_TRIED_MAX - len(tried) + 1)}
    return [count * MILLI_PER_CPU for count in sorted(tried, reverse=True) if 0 < count < cpus]


def _on_one_node(ledger: CpuLedger, name: str, requested: int) -> list[int]:
    """Returns the largest amount of a dimension that is free on one NUMA node. The result is empty
    if this amount is 0, or if it is at least `requested`.
    """
    if not ledger.reports(name):
        return []
    most = max(ledger.available(at, name) for at in range(len(ledger.layout.nodes)))
    return [most] if 0 < most < requested else []


def _refused(ledger: CpuLedger, wanted: CpuRequest) -> bool:
    return isinstance(assign(ledger, wanted), HostRefusal)
