"""Assigns the cpus of one host: records which slots have them, and chooses those of a new slot.

Chosen assignments are cached until the host's cpus change, because a check for room is followed by
the placement itself. The caller checks amounts and the number of slots before (`Host.free`).

Enough free amounts do not guarantee that a *topology-constrained* request fits, because its cpus
must also lie in suitable places. On hosts that align all slots to NUMA nodes (`aligning`), this is
true of all requests.
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
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.scheduling_key import (
    SchedulingKey,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from finegrain.resources import Amounts, ResourceProfile
    from resource_manager.engine.hosts.allowed_cpus import HostCpus
    from resource_manager.engine.model.entities import Cordon, Executor, Registration, Slot, SlotKey
    from resource_manager.engine.model.scheduling_key import CpuKey, Labels

CpuKind = tuple[object, ...]
"""The properties that decide which requests fit the cpus of an empty host. Hosts with equal
properties share one object.
"""

ANSWERS_MAX = 16
"""Most requests per host whose results are cached."""

NOT_ANNOUNCED = "{}"
"""The announcement of an executor whose version does not know dedicated cpus."""

_KINDS_KNOWN = 4_096

NO_TOPOLOGY = HostRefusal(
    CpuBlocker.NO_CPU_TOPOLOGY,
    "the host does not tell its cores and NUMA nodes",
)


class ResourceRequest(Protocol):
    """The properties of a request that a host reads. A scheduling class has them, and a
    `MemberRequest` of a gang.
    """

    @property
    def profile(self) -> ResourceProfile | None:
        """None: a default slot."""

    @property
    def labels(self) -> Labels:
        """Labels that it requires of a host."""

    @property
    def cpus(self) -> CpuKey | None:
        """CPU policy and limit; None: none."""

    @property
    def best_effort(self) -> bool:
        """True if it books best-effort cpu."""

    @property
    def topology_constrained(self) -> bool:
        """True if amounts alone can never decide whether a host can serve it."""

    @property
    def key(self) -> SchedulingKey:
        """All properties by which a host is chosen."""


@dataclass(slots=True)
class Answer:
    """The cpus that equal slots get one after the other, and why no further slot fits, if that is
    known.
    """

    given: list[CpuAssignment]
    refusal: HostRefusal | None


Answers = tuple[int, dict[CpuRequest, Answer]]
"""The version of the ledger of cpus, and the answers that are valid for it, by request."""


def no_answers() -> Answers:
    """Returns an empty cache."""
    return -1, {}


@dataclass(slots=True, eq=False)
class CpuAllocator:
    """The cpus of one host. It is a part of the host's ledger (`Host`).

    Attributes:
        executor: the executor.
        present: settings and capacity that are in force now.
        cordons: devices on which operators have stopped new work.
        slots: all slots of the host.
        cpus: the ledger of cpus, with every slot; None: the host does not report its cores.
        cpu_kind: see `CpuKind`; None if `cpus` is None.
        aligning: all slots are topology-constrained there.
        answers: the cache.
    """

    executor: Executor
    present: HostCpus = field(init=False)
    cordons: tuple[Cordon, ...] = field(init=False, default=())
    slots: dict[SlotKey, Slot] = field(init=False, default_factory=dict)
    cpus: CpuLedger | None = field(init=False, default=None)
    cpu_kind: CpuKind | None = field(init=False, default=None)
    aligning: bool = field(init=False, default=False)
    answers: Answers = field(init=False, default_factory=no_answers)

    if TYPE_CHECKING:

        def booking_for(self, request: ResourceRequest) -> dict[str, int]: ...

    # What there is.

    def adopt_topology(self) -> None:
        """Makes a new ledger of cpus from the registration and adds all slots. Slots keep their
        cpus, even if the host no longer has these.
        """
        registration = self.executor.registration
        layout = _layout(registration)
        # The cached answers are of the old ledger, whose version numbers may occur again.
        self.answers = no_answers()
        if layout is None:
            # Its slots are placed by amounts alone.
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
            self.cpus.add(key, cpus_booked(slot))
        self.follow_settings()
        # Slots that the host has become too small for stay, and must not count as a bug.
        self.cpus.tolerate()

    def follow_settings(self) -> bool:
        """Takes in the settings in force, and which cpus are unavailable.

        Returns:
            True if that changes what slots can get.
        """
        ledger, seen = self.cpus, self.executor.cpu_state
        if ledger is None:  # no cores are known, so nothing follows from settings
            return False
        version = ledger.version
        ledger.set_policy(self.present.policy)
        # The report may name cpus that the layout does not have.
        known = CpuSet.from_bits(ledger.reported_layout.cpus)
        offline, kubelet = seen.offline_cpus & known, seen.kubelet_cpus & known
        ledger.set_unavailable(offline=offline, kubelet=kubelet, kubelet_memory=seen.kubelet_memory)
        problems = {(each.type, each.uuid): each.problem for each in ledger.devices.layout.devices}
        # What the executor sees now replaces what it announced when it registered.
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
        # Kinds are compared often, in caches of what fits; one shared object makes that cheap.
        if kind != self.cpu_kind:
            self.cpu_kind = _shared(kind)
        return ledger.version != version

    def conditions_of(self, slot: Slot) -> tuple[DeviceCondition, ...]:
        """Returns the conditions of a slot's devices that are not healthy, or that others use."""
        if not self.executor.device_conditions or slot.assignment is None:
            return ()
        has = {(each.type, each.uuid) for each in slot.assignment.devices}
        return tuple(
            each
            for each in self.executor.device_conditions
            if (each.type, each.uuid) in has and each.obstacle
        )

    # What slots can get.

    def unmet(self, request: ResourceRequest) -> int:
        """Returns how many preferred policies the slot would miss here, given that it fits."""
        found = self.assign(request)
        return len(found.notes) if isinstance(found, CpuAssignment) else 0

    @property
    def lacks_best_effort_pool(self) -> bool:
        """True if best-effort slots would have no cpu to run on, whatever is left to book."""
        return self.cpus is not None and not self.cpus.best_effort_cpus

    def needs_topology(self, request: ResourceRequest) -> bool:
        """Returns True if amounts do not decide whether the slot fits here; ask `suits` then."""
        return self.aligning or request.topology_constrained

    def assign(self, request: ResourceRequest) -> CpuAssignment | HostRefusal:
        """Returns the cpus and NUMA nodes that one such slot would get here now, or why there are
        none.

        The caller must check amounts, number of slots, and whether the host may be used.
        """
        if self.cpus is None:
            return assign(None, self._cpu_request(request))
        # The answer for one slot is also the first one of a longer answer.
        answer = self._cached_answer(self.cpus, request, 1)
        if answer.given:
            return answer.given[0]
        return answer.refusal or NO_TOPOLOGY

    def assign_many(self, request: ResourceRequest, count: int) -> list[CpuAssignment]:
        """Returns what up to `count` such slots would get, one after the other; fewer if cpus or
        NUMA nodes fit no more. The caller must check the rest, as for `assign`.
        """
        if self.cpus is None:
            found = assign(None, self._cpu_request(request))
            # Without known cores nothing is used up, so all slots get the same.
            return [] if isinstance(found, HostRefusal) else [found] * count
        return self._cached_answer(self.cpus, request, count).given[:count]

    def suits(self, request: ResourceRequest, count: int = 1) -> bool:
        """Returns True if the host's cpus and NUMA nodes fit `count` such slots. Always True if
        amounts decide.
        """
        if not self.needs_topology(request):
            return True
        return len(self.assign_many(request, count)) == count

    def never_suits(self, request: ResourceRequest) -> HostRefusal | None:
        """Returns why the host would not fit one such slot even when empty; None: it would."""
        if not self.needs_topology(request):
            return None
        return fits_empty(self.cpus, self._cpu_request(request))

    def score(self, request: ResourceRequest) -> int:
        """Returns how well this host fits the slot, which has room here; higher is better."""
        found = self.assign(request)
        # A refusal ranks last but is no error: the caller asks about many hosts.
        if self.cpus is None or isinstance(found, HostRefusal):
            return 0
        return score(self.cpus, self._cpu_request(request), found)

    def assignments(self, request: ResourceRequest, count: int) -> list[CpuAssignment | None]:
        """Returns what `count` slots get that are placed here now.

        Raises:
            InvariantBroken: there is not enough for them; the caller must check that before.
        """
        if self.needs_topology(request):
            # The pass has asked before, so this is usually a cached answer.
            found = self.assign_many(request, count)
            if len(found) < count:
                raise InvariantBroken(
                    f"{count} slots of {request.profile} were placed on"
                    f" {self.executor.executor_id}, whose cpus suit {len(found)} of them"
                )
            return list(found)
        # A request without a policy runs in the whole shared pool and needs no entry.
        if request.cpus is None:
            return [None] * count
        one = self.assign(request)
        return [_in_pools(request) if isinstance(one, HostRefusal) else one] * count

    def assignments_together(
        self, members: Sequence[tuple[ResourceRequest, int]]
    ) -> list[CpuAssignment] | None:
        """Returns what members of a gang get here whose GPUs are chosen together, in this order;
        each request comes with its number. None: ask `assignments` for one after the other.
        """
        has_devices = any(each.profile is not None and each.profile.devices for each, _ in members)
        if self.cpus is None or not has_devices:
            return None
        requests = [self._cpu_request(each) for each, count in members for _ in range(count)]
        return assign_together(self.cpus, requests)

    def _cached_answer(self, ledger: CpuLedger, request: ResourceRequest, count: int) -> Answer:
        version, known = self.answers
        if version != ledger.version:
            known = {}
            self.answers = ledger.version, known
        cpu_request = self._cpu_request(request)
        answer = known.get(cpu_request)
        # A shorter cached answer is enough if it ends in a refusal: no more slots fit then.
        if answer is None or (len(answer.given) < count and answer.refusal is None):
            # All at once: the cache only serves the few requests that are tried one after the
            # other.
            if answer is None and len(known) >= ANSWERS_MAX:
                known.clear()
            answer = known[cpu_request] = _answer(ledger, cpu_request, count)
        return answer

    def _cpu_request(self, request: ResourceRequest) -> CpuRequest:
        return cpu_request_of(request, self.booking_for(request))


def cpu_request_of(request: ResourceRequest, booked: Amounts) -> CpuRequest:
    """Returns what a slot needs of a host's cpus, NUMA nodes and devices.

    Args:
        request: the request.
        booked: the amounts that the slot books on the host.
    """
    policy, limit_milli = request.cpus or (PLAIN, 0)
    devices = request.profile.devices if request.profile is not None else ()
    return CpuRequest.of(policy, booked, limit_milli, devices)


def cpus_booked(slot: Slot) -> CpuAssignment | None:
    """Returns what a slot holds of its host's cpus. While a resize is in flight, that is what
    either size needs.
    """
    ordered = slot.ordered.assignment if slot.ordered is not None else None
    if slot.assignment is None or ordered is None:
        return slot.assignment
    return together(slot.assignment, ordered)


def _answer(ledger: CpuLedger, cpu_request: CpuRequest, count: int) -> Answer:
    # A single slot needs no copy of the ledger.
    found = (
        [assign(ledger, cpu_request)]
        if count == 1
        else assign_many(ledger, repeat(cpu_request, count))
    )
    given = [each for each in found if isinstance(each, CpuAssignment)]
    # Only the last one can be a refusal.
    last = found[-1] if found else None
    return Answer(given, last if isinstance(last, HostRefusal) else None)


def _layout(registration: Registration) -> CpuLayout | None:
    if registration.host_cpus == NOT_ANNOUNCED:  # it would not understand an assignment
        return None
    try:
        return layout_of(registration.topology, registration.host_cpus)
    except (InvalidArgument, ValueError):  # what a host cannot report cannot be given to slots
        return None


@lru_cache(_KINDS_KNOWN)
def _shared(kind: CpuKind) -> CpuKind:
    """Returns the same object for equal kinds."""
    return kind


def _in_pools(request: ResourceRequest) -> CpuAssignment:
    """Returns the assignment on hosts without known cores: the pool of the class."""
    return _of_class((request.cpus or (PLAIN, 0))[0].qos)


@lru_cache
def _of_class(qos: QosClass) -> CpuAssignment:
    return CpuAssignment(qos)
