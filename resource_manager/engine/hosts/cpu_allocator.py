"""Assigns the cpus of one host. The module records which slots have which cpus, and chooses the
cpus of new slots.

The caller first checks the amounts and the number of slots (`Host.free`), and then calls this
module to check the cpus. The resulting assignments are cached until the cpu ledger of the host
changes, so that the placement of the slots can use them.

A *topology-constrained* request needs cpus on suitable cores and NUMA nodes. So the request
possibly does not fit even if the free amounts are large enough. On hosts that align all slots to
NUMA nodes (`aligning`), all requests are treated in this way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, QosClass
from finegrain.cpuset import CpuSet
from finegrain.devices.condition import DeviceCondition
from finegrain.errors import InvalidArgument, InvariantBroken
from finegrain.resources import BEST_EFFORT_CPU_MILLI
from resource_manager.engine.cpus.assign import (
    assign,
    assign_many,
    assign_together,
    fits_empty,
    score,
)
from resource_manager.engine.cpus.empty_hosts import HostKind
from resource_manager.engine.cpus.layout import CpuLayout, layout_of
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.cpus.resizing import together
from resource_manager.engine.devices.layout import layout_of as devices_of
from resource_manager.engine.hosts.labeled_slots import LabeledSlots, near_rules
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.scheduling_key import (
    SchedulingKey,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from finegrain.neighbors import NeighborRule
    from finegrain.resources import Amounts, ResourceProfile
    from resource_manager.engine.hosts.allowed_cpus import HostCpus
    from resource_manager.engine.model.entities import Cordon, Executor, Registration, Slot, SlotKey
    from resource_manager.engine.model.scheduling_key import CpuKey, Labels

CpuKind = tuple[object, ...]
"""The properties of a host that decide whether a request fits its cpus while the host is empty.
Hosts with equal properties share one object.
"""

ANSWERS_MAX = 16
"""The largest number of requests whose results are cached for each host."""

NO_ANNOUNCEMENT = "{}"
"""The announcement of an executor whose version does not support dedicated cpus."""

_KINDS_KNOWN = 4_096

NO_TOPOLOGY = HostRefusal(
    CpuBlocker.NO_CPU_TOPOLOGY,
    "the host does not report its cores and NUMA nodes",
)


class ResourceRequest(Protocol):
    """The properties of a request that a host needs to know. Scheduling classes and requests of
    gangs (`MemberRequest`) implement this protocol.
    """

    @property
    def profile(self) -> ResourceProfile | None:
        """The requested resources. None stands for a default slot."""

    @property
    def labels(self) -> Labels:
        """Labels that the host must carry."""

    @property
    def cpus(self) -> CpuKey | None:
        """CPU policy and cpu limit. None if the request has no CPU policy and no cpu limit."""

    @property
    def best_effort(self) -> bool:
        """True if the slot books best-effort cpu."""

    @property
    def topology_constrained(self) -> bool:
        """True if every host must check more than amounts, for example cpus and NUMA nodes."""

    @property
    def key(self) -> SchedulingKey:
        """All properties of the request that matter for the choice of a host."""


@dataclass(slots=True)
class CachedAnswer:
    """The assignments of equal slots that are placed one after the other. `refusal` says why no
    further slot fits. If it is None, it is unknown whether a further slot fits.
    """

    given: list[CpuAssignment]
    refusal: HostRefusal | None


AnswerCache = tuple[int, dict[CpuRequest, CachedAnswer]]
"""The version of the cpu ledger, and the results that are valid for this version, by request."""


def no_answers() -> AnswerCache:
    """Returns an empty cache."""
    return -1, {}


@dataclass(slots=True, eq=False)
class CpuAllocator:
    """The cpus of one host. This class is a part of the host's ledger (`Host`).

    Attributes:
        executor: the executor.
        present: the settings and the capacity that apply now.
        cordons: devices on which administrators have stopped new slots.
        slots: all slots of the host.
        cpus: the cpu ledger, with all slots. None if the host does not report its cores.
        cpu_kind: see `CpuKind`. None if `cpus` is None.
        aligning: True if the host aligns all slots to NUMA nodes.
        answers: the cache of assignments.
        labeled: the slots of all hosts that have labels or rules about neighbors.
    """

    executor: Executor
    present: HostCpus = field(init=False)
    cordons: tuple[Cordon, ...] = field(init=False, default=())
    slots: dict[SlotKey, Slot] = field(init=False, default_factory=dict)
    cpus: CpuLedger | None = field(init=False, default=None)
    cpu_kind: CpuKind | None = field(init=False, default=None)
    aligning: bool = field(init=False, default=False)
    answers: AnswerCache = field(init=False, default_factory=no_answers)
    labeled: LabeledSlots = field(init=False, default_factory=LabeledSlots)

    if TYPE_CHECKING:

        def booking_for(self, request: ResourceRequest) -> dict[str, int]: ...

    # The host's cpus and settings.

    def adopt_topology(self) -> None:
        """Makes a new cpu ledger from the registration and adds all slots. Slots keep their cpus,
        even if the host no longer has these cpus.
        """
        registration = self.executor.registration
        layout = _layout(registration)
        # The new ledger can reach the same version numbers as the old ledger, so results of the old
        # ledger are dropped.
        self.answers = no_answers()
        if layout is None:
            # For slots on this host, only amounts are checked.
            self.cpus, self.cpu_kind, self.aligning = None, None, False
            return
        own = registration.total.get(BEST_EFFORT_CPU_MILLI)
        self.cpus = CpuLedger(
            layout,
            self.present.policy,
            best_effort_milli=own,
            devices=devices_of(registration.topology),
            time_shared=bool(json.loads(registration.host_cpus).get("time_shared")),
        )
        for key, slot in self.slots.items():
            if not slot.revoked_for:  # see `Host.set_size`
                self.cpus.add(key, cpus_booked(slot), slot.policy)
        self.follow_settings()
        # If the host has become too small for its slots, the slots stay, and the ledger must not
        # report an inconsistency.
        self.cpus.tolerate()

    def follow_settings(self) -> bool:
        """Applies the present settings, and the reported state of cpus and devices, to the cpu
        ledger.

        Returns:
            True if the cpus or devices that slots can get have changed.
        """
        ledger, seen = self.cpus, self.executor.cpu_state
        if ledger is None:  # the cores are unknown, so settings have no effect
            return False
        version = ledger.version
        ledger.set_policy(self.present.policy)
        # The report can name cpus that the layout does not have.
        known = CpuSet.from_bits(ledger.reported_layout.cpus)
        offline, kubelet = seen.offline_cpus & known, seen.kubelet_cpus & known
        ledger.set_unavailable(offline=offline, kubelet=kubelet, kubelet_memory=seen.kubelet_memory)
        problems = {(each.type, each.uuid): each.problem for each in ledger.devices.layout.devices}
        # A condition that the executor has reported since its registration replaces the announced
        # condition.
        now = {(each.type, each.uuid): each for each in self.executor.device_conditions}
        problems |= {key: each.obstacle for key, each in now.items() if key in problems}
        cordoned = {
            (each.type, each.uuid): f"cordoned: {each.reason or 'no reason given'}"
            for each in self.cordons
        }
        unusable = {key: problem for key, problem in (problems | cordoned).items() if problem}
        foreign = (key for key, each in now.items() if not each.problem and each.foreign_uses)
        ledger.set_unusable_devices(unusable, frozenset(foreign) - cordoned.keys())
        self.aligning = ledger.policy.alignment.aligns and not ledger.time_shared
        kind = HostKind.of(ledger)
        # Kinds are often compared as keys of caches. If equal kinds share one object, the
        # comparison is cheap.
        if kind != self.cpu_kind:
            self.cpu_kind = _shared(kind)
        return ledger.version != version

    def conditions_of(self, slot: Slot) -> tuple[DeviceCondition, ...]:
        """Returns the conditions of the slot's devices that are not healthy, or that programs
        outside slots use.
        """
        if not self.executor.device_conditions or slot.assignment is None:
            return ()
        has = {(each.type, each.uuid) for each in slot.assignment.devices}
        return tuple(
            each
            for each in self.executor.device_conditions
            if (each.type, each.uuid) in has and each.obstacle
        )

    # Assignments for new slots.

    def unmet(self, request: ResourceRequest) -> int:
        """Returns how many preferred policies this host would not meet for a slot of the request.
        The slot must fit.
        """
        found = self.assign(request)
        return len(found.notes) if isinstance(found, CpuAssignment) else 0

    @property
    def lacks_best_effort_pool(self) -> bool:
        """True if no best-effort slot can run on this host: its best-effort pool has no cpu."""
        return self.cpus is not None and not self.cpus.best_effort_cpus

    def needs_topology(self, request: ResourceRequest) -> bool:
        """Returns True if amounts alone are not sufficient to decide whether the request fits on
        this host. The caller must then call `suits`.
        """
        return self.aligning or request.topology_constrained

    def assign(self, request: ResourceRequest) -> CpuAssignment | HostRefusal:
        """Returns the cpus and NUMA nodes that a slot for the request would get on this host now,
        or why the slot does not fit.

        The caller must check the amounts, the number of slots, and whether the host may get new
        slots.
        """
        if self.cpus is None:
            return assign(None, self._cpu_request(request))
        # A cached result for several slots begins with the assignment of one slot.
        answer = self._cached_answer(self.cpus, request, 1)
        if answer.given:
            return answer.given[0]
        return answer.refusal or NO_TOPOLOGY

    def assign_many(self, request: ResourceRequest, count: int) -> list[CpuAssignment]:
        """Returns the assignments of `count` slots for the request, placed one after the other. The
        list is shorter if cpus or NUMA nodes do not suffice for all slots. The caller must make the
        same checks as for `assign`.
        """
        if self.cpus is None:
            found = assign(None, self._cpu_request(request))
            # If the cores are unknown, all slots get the same assignment.
            return [] if isinstance(found, HostRefusal) else [found] * count
        return self._cached_answer(self.cpus, request, count).given[:count]

    def suits(self, request: ResourceRequest, count: int = 1) -> bool:
        """Returns True if the host's cpus and NUMA nodes suffice for `count` slots of the request.
        Always True if amounts alone are sufficient for the decision.
        """
        if not self.needs_topology(request):
            return True
        return len(self.assign_many(request, count)) == count

    def never_suits(self, request: ResourceRequest) -> HostRefusal | None:
        """Returns the reason why a slot for the request would not fit even on the empty host. The
        result is None if the slot would fit.
        """
        if not self.needs_topology(request):
            return None
        booked = self.booking_for(request)
        return fits_empty(self.cpus, cpu_request_of(request, booked, _near_of(request)))

    def score(self, request: ResourceRequest) -> int:
        """Returns a number that says how well this host suits a slot for the request; a higher
        number is better.
        """
        found = self.assign(request)
        # A host that refuses the request gets the lowest score. The refusal is not an error,
        # because the caller compares many hosts.
        if self.cpus is None or isinstance(found, HostRefusal):
            return 0
        return score(self.cpus, self._cpu_request(request), found)

    def assignments(self, request: ResourceRequest, count: int) -> list[CpuAssignment | None]:
        """Returns the assignments of `count` slots that are placed on this host now.

        Raises:
            InvariantBroken: the cpus do not suffice for all slots. The caller must check first that
                they suffice.
        """
        if self.needs_topology(request):
            # The placement pass has already checked the request, so the result is usually cached.
            found = self.assign_many(request, count)
            if len(found) < count:
                raise InvariantBroken(
                    f"{count} slots of {request.profile} were placed on"
                    f" {self.executor.executor_id}, but its cpus suffice for only {len(found)}"
                )
            return list(found)
        # A slot for a request without a policy runs in the whole shared pool and needs no
        # assignment.
        if request.cpus is None:
            return [None] * count
        one = self.assign(request)
        return [_in_pools(request) if isinstance(one, HostRefusal) else one] * count

    def assignments_together(
        self, members: Sequence[tuple[ResourceRequest, int]]
    ) -> list[CpuAssignment] | None:
        """Chooses the GPUs of several members of a gang together, so that these GPUs are close to
        each other.

        Args:
            members: the requests, each with its number of members.

        Returns:
            The assignments, in the order of `members`. The result is None if the GPUs are not
            chosen together. The caller must then use `assignments`.
        """
        has_devices = any(each.profile is not None and each.profile.devices for each, _ in members)
        if self.cpus is None or not has_devices:
            return None
        requests = [self._cpu_request(each) for each, count in members for _ in range(count)]
        return assign_together(self.cpus, requests)

    def _cached_answer(
        self, ledger: CpuLedger, request: ResourceRequest, count: int
    ) -> CachedAnswer:
        version, known = self.answers
        if version != ledger.version:
            known = {}
            self.answers = ledger.version, known
        cpu_request = self._cpu_request(request)
        answer = known.get(cpu_request)
        # A cached result for fewer slots is sufficient if it has a refusal, because then no more
        # slots fit.
        if answer is None or (len(answer.given) < count and answer.refusal is None):
            # If the cache is full, the whole cache is cleared. The cache only has to contain the
            # few requests that one placement pass tries at the same time.
            if answer is None and len(known) >= ANSWERS_MAX:
                known.clear()
            answer = known[cpu_request] = _answer(ledger, cpu_request, count)
        return answer

    def _cpu_request(self, request: ResourceRequest) -> CpuRequest:
        return cpu_request_of(request, self.booking_for(request), self.without_neighbor(request))

    def without_neighbor(self, request: ResourceRequest) -> tuple[NeighborRule, ...]:
        """Returns the rules `near` that a slot of the request meets without a neighbor."""
        if request.cpus is None or not request.cpus[0].neighbors:
            return ()
        return self.labeled.without_neighbor(request.cpus[0])


def _near_of(request: ResourceRequest) -> tuple[NeighborRule, ...]:
    return near_rules(request.cpus[0]) if request.cpus is not None else ()


def cpu_request_of(
    request: ResourceRequest,
    booked: Amounts,
    without_neighbor: tuple[NeighborRule, ...] = (),
) -> CpuRequest:
    """Returns the cpus, NUMA nodes and devices that a slot needs on a host.

    Args:
        request: the request.
        booked: the amounts that the slot books on the host.
        without_neighbor: rules `near` that the slot meets without a neighbor.
    """
    policy, limit_milli = request.cpus or (PLAIN, 0)
    devices = request.profile.devices if request.profile is not None else ()
    return CpuRequest.of(policy, booked, limit_milli, devices, without_neighbor)


def cpus_booked(slot: Slot) -> CpuAssignment | None:
    """Returns the assignment that a slot holds on its host. While a resize is in flight, the
    assignment includes the cpus, nodes and devices of both sizes.
    """
    ordered = slot.ordered.assignment if slot.ordered is not None else None
    if slot.assignment is None or ordered is None:
        return slot.assignment
    return together(slot.assignment, ordered)


def _answer(ledger: CpuLedger, cpu_request: CpuRequest, count: int) -> CachedAnswer:
    # For one slot, no copy of the ledger is needed.
    found = (
        [assign(ledger, cpu_request)]
        if count == 1
        else assign_many(ledger, repeat(cpu_request, count))
    )
    given = [each for each in found if isinstance(each, CpuAssignment)]
    # Only the last result can be a refusal.
    last = found[-1] if found else None
    return CachedAnswer(given, last if isinstance(last, HostRefusal) else None)


def _layout(registration: Registration) -> CpuLayout | None:
    # An executor without an announcement would not understand an assignment.
    if registration.host_cpus == NO_ANNOUNCEMENT:
        return None
    try:
        return layout_of(registration.topology, registration.host_cpus)
    except (InvalidArgument, ValueError):
        # The executor reported its cpus wrongly, so slots are placed by amounts alone.
        return None


@lru_cache(_KINDS_KNOWN)
def _shared(kind: CpuKind) -> CpuKind:
    """Returns the same object for equal kinds."""
    return kind


def _in_pools(request: ResourceRequest) -> CpuAssignment:
    """Returns the assignment on hosts with unknown cores: the shared pool of the QoS class."""
    return _of_class((request.cpus or (PLAIN, 0))[0].qos)


@lru_cache
def _of_class(qos: QosClass) -> CpuAssignment:
    return CpuAssignment(qos)
