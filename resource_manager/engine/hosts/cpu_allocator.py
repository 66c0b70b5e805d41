"""The part of a host's books that is about its cpus: who holds which, and what it can give exactly.

Answers are remembered until something on the host's cpus changes, since whoever is asked whether
there is room is asked for it right afterwards. Knows one host; refuses to know amounts and slots
that may be had (`Host.free`), which are asked first, and who is to be served.

Some are placed *exactly*: those who ask for more of their cpus than an amount, and on hosts that
align everybody to NUMA nodes (`Host.aligning`) all others as well. For them amounts are necessary
and never sufficient.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Protocol

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import PLAIN, QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument, InvariantBroken
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI
from resource_manager.engine.cpus.assign import assign, assign_many, fits_empty, score
from resource_manager.engine.cpus.layout import CpuLayout, layout_of
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.refusals import CpuBlocker, CpuRefusal
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resizing import together
from resource_manager.engine.model.scheduling_key import (
    NODE_CPU_MILLI,
    PIN_CORE_CPUS,
    PIN_CPUS,
    PIN_NODE_CPUS,
    SchedulingKey,
)

if TYPE_CHECKING:
    from finegrain.resources import ResourceProfile
    from resource_manager.engine.hosts.allowed_cpus import HostCpus
    from resource_manager.engine.model.entities import Executor, Registration, Slot, SlotKey
    from resource_manager.engine.model.scheduling_key import CpuKey

CpuKind = tuple[object, ...]
"""What decides whom the cpus of a host suit when it is empty; hosts that are alike share one."""

ANSWERS_MAX = 16
"""Answers that one host remembers: those who are tried one after the other."""

NOT_ANNOUNCED = "{}"
"""What an executor announces of its cpus that is older than slots with cpus of their own."""

_KINDS_KNOWN = 4_096

NO_TOPOLOGY = CpuRefusal(
    CpuBlocker.NO_CPU_TOPOLOGY,
    "the host does not tell its cores and NUMA nodes",
)


class ResourceRequest(Protocol):
    """What somebody asks for, as far as a host can tell: a shape, or the wish of members of a
    gang.
    """

    @property
    def profile(self) -> ResourceProfile | None:
        """None: a default slot."""

    @property
    def cpus(self) -> CpuKey | None:
        """What is said of cpus; None: nothing."""

    @property
    def best_effort(self) -> bool:
        """True if it books best-effort cpu."""

    @property
    def topology_constrained(self) -> bool:
        """True if amounts alone never say whether a host can serve it."""

    @property
    def key(self) -> SchedulingKey:
        """All by which a host is chosen."""


@dataclass(slots=True)
class Answer:
    """What so many equal slots get, one after the other, and why no more do, if that is known."""

    given: list[CpuAssignment]
    refusal: CpuRefusal | None


Answers = tuple[int, dict[CpuRequest, Answer]]
"""Answers by wish, as of a version of the books of cpus."""


def no_answers() -> Answers:
    """Nobody was asked yet."""
    return -1, {}


@dataclass(slots=True, eq=False)
class CpuAllocator:
    """Cpus of one host, of whose books (`Host`) they are a part.

    Attributes:
        cpus: who holds which; None: it does not tell what they are made of. Every slot is in it.
        cpu_kind: see `CpuKind`; None likewise.
        strict: everybody is placed exactly there.
    """

    executor: Executor
    present: HostCpus = field(init=False)  # what holds for its cpus
    slots: dict[SlotKey, Slot] = field(init=False, default_factory=dict)
    cpus: CpuLedger | None = field(init=False, default=None)
    cpu_kind: CpuKind | None = field(init=False, default=None)
    aligning: bool = field(init=False, default=False)
    answers: Answers = field(init=False, default_factory=no_answers)

    if TYPE_CHECKING:

        def booking_for(self, request: ResourceRequest) -> dict[str, int]: ...

    # What there is.

    def adopt_topology(self) -> None:
        """Makes the books of cpus anew, with all slots, from what the executor registered with.
        Slots keep what they have, also where the host has it no more.
        """
        registration = self.executor.registration
        layout = _layout(registration)
        self.answers = no_answers()
        if layout is None:
            self.cpus, self.cpu_kind, self.aligning = None, None, False
            return
        own = registration.total.get(BEST_EFFORT_CPU_MILLI)
        self.cpus = CpuLedger(layout, self.present.policy, best_effort_milli=own)
        for key, slot in self.slots.items():
            self.cpus.add(key, cpus_booked(slot))
        self.follow_settings()
        self.cpus.tolerate()

    def follow_settings(self) -> bool:
        """Takes in which settings hold, and what of the cpus cannot be had at present. True if that
        changes what slots can get.
        """
        ledger, seen = self.cpus, self.executor.cpu_state
        if ledger is None:
            return False
        version = ledger.version
        ledger.set_policy(self.present.policy)
        known = CpuSet.from_bits(ledger.reported_layout.cpus)
        offline, kubelet = seen.offline_cpus & known, seen.kubelet_cpus & known
        ledger.set_unavailable(offline=offline, kubelet=kubelet, kubelet_memory=seen.kubelet_memory)
        self.aligning = ledger.policy.alignment.aligns
        kind = (ledger.layout, ledger.policy, ledger.unavailable, ledger.best_effort_milli)
        if kind != self.cpu_kind:
            self.cpu_kind = _shared(kind)
        return ledger.version != version

    # What can be had.

    @property
    def lacks_best_effort_pool(self) -> bool:
        """True if best-effort slots would have no cpu to run on, whatever is left to book."""
        return self.cpus is not None and not self.cpus.best_effort_cpus

    def needs_topology(self, request: ResourceRequest) -> bool:
        """True if amounts do not say whether one of these fits here; ask `suits` then."""
        return self.aligning or request.topology_constrained

    def assign(self, request: ResourceRequest) -> CpuAssignment | CpuRefusal:
        """The cpus and NUMA nodes that one of these would get here now, or why there are none.

        Whether the host has the amounts and slots, and may be used at all, is for the caller to
        know.
        """
        if self.cpus is None:
            return assign(None, self._cpu_request(request))
        answer = self._cached_answer(self.cpus, request, 1)
        if answer.given:
            return answer.given[0]
        return answer.refusal or NO_TOPOLOGY

    def assign_many(self, request: ResourceRequest, count: int) -> list[CpuAssignment]:
        """What up to `count` of these would get if they came one after the other; fewer, if cpus or
        NUMA nodes do not suit more. Likewise.
        """
        if self.cpus is None:
            found = assign(None, self._cpu_request(request))
            return [] if isinstance(found, CpuRefusal) else [found] * count
        return self._cached_answer(self.cpus, request, count).given[:count]

    def suits(self, request: ResourceRequest, count: int = 1) -> bool:
        """True if the host's cpus and NUMA nodes suit so many of these; always, where amounts
        decide.
        """
        if not self.needs_topology(request):
            return True
        return len(self.assign_many(request, count)) == count

    def could_suit(self, request: ResourceRequest) -> bool:
        """True if they would if the host were empty, under the settings that hold now."""
        return self.never_suits(request) is None

    def never_suits(self, request: ResourceRequest) -> CpuRefusal | None:
        """Why they would not even then; None: they would."""
        if not self.needs_topology(request):
            return None
        return fits_empty(self.cpus, self._cpu_request(request))

    def suits_without(self, request: ResourceRequest, unavailable_slot: SlotKey) -> bool:
        """True if they would suit one of these if a slot were gone."""
        if not self.needs_topology(request):
            return True
        ledger = self.cpus.scratch() if self.cpus is not None else None
        if ledger is not None:
            ledger.remove(unavailable_slot)
        return isinstance(assign(ledger, self._cpu_request(request)), CpuAssignment)

    def score(self, request: ResourceRequest) -> int:
        """How well this host suits one of these that fits here; the best has the most."""
        found = self.assign(request)
        if self.cpus is None or isinstance(found, CpuRefusal):
            return 0
        return score(self.cpus, self._cpu_request(request), found)

    def assignments(self, request: ResourceRequest, count: int) -> list[CpuAssignment | None]:
        """What so many slots get that are placed here now.

        Raises:
            InvariantBroken: there is not enough for them; whoever places looks first.
        """
        if self.needs_topology(request):
            found = self.assign_many(request, count)
            if len(found) < count:
                raise InvariantBroken(
                    f"{count} slots of {request.profile} were placed on"
                    f" {self.executor.executor_id}, whose cpus suit {len(found)} of them"
                )
            return list(found)
        if request.cpus is None:
            return [None] * count
        one = self.assign(request)
        return [_in_pools(request) if isinstance(one, CpuRefusal) else one] * count

    def _cached_answer(self, ledger: CpuLedger, request: ResourceRequest, count: int) -> Answer:
        version, known = self.answers
        if version != ledger.version:
            known = {}
            self.answers = ledger.version, known
        cpu_request = self._cpu_request(request)
        answer = known.get(cpu_request)
        if answer is None or (len(answer.given) < count and answer.refusal is None):
            if answer is None and len(known) >= ANSWERS_MAX:
                known.clear()
            answer = known[cpu_request] = _answer(ledger, cpu_request, count)
        return answer

    def _cpu_request(self, request: ResourceRequest) -> CpuRequest:
        policy, limit_milli = request.cpus or (PLAIN, 0)
        return CpuRequest.of(policy, self.booking_for(request), limit_milli)


def cpus_booked(slot: Slot) -> CpuAssignment | None:
    """What a slot holds of its host's cpus: until the executor has said which size it has, what
    either size needs.
    """
    ordered = slot.ordered.assignment if slot.ordered is not None else None
    if slot.assignment is None or ordered is None:
        return slot.assignment
    return together(slot.assignment, ordered)


def cpu_offer(ledger: CpuLedger) -> dict[str, int]:
    """What a host has of these columns."""
    room = ledger.pin_room()
    return {
        PIN_CPUS: room.cpus,
        PIN_CORE_CPUS: room.whole_core_cpus,
        PIN_NODE_CPUS: room.most_on_a_node,
        NODE_CPU_MILLI: max(ledger.available(at, CPU_MILLI) for at in ledger.layout.cpu_nodes),
    }


def _answer(ledger: CpuLedger, cpu_request: CpuRequest, count: int) -> Answer:
    found = (
        [assign(ledger, cpu_request)]
        if count == 1
        else assign_many(ledger, repeat(cpu_request, count))
    )
    given = [each for each in found if isinstance(each, CpuAssignment)]
    last = found[-1] if found else None
    return Answer(given, last if isinstance(last, CpuRefusal) else None)


def _layout(registration: Registration) -> CpuLayout | None:
    if registration.host_cpus == NOT_ANNOUNCED:  # it would not know what to do with an assignment
        return None
    try:
        return layout_of(registration.topology, registration.host_cpus)
    except (InvalidArgument, ValueError):  # what a host cannot tell, nobody can have of it
        return None


@lru_cache(_KINDS_KNOWN)
def _shared(kind: CpuKind) -> CpuKind:
    """The same for equal ones."""
    return kind


def _in_pools(request: ResourceRequest) -> CpuAssignment:
    """Where nothing is known of cpus: in whatever pool its class has."""
    return _of_class((request.cpus or (PLAIN, 0))[0].qos)


@lru_cache
def _of_class(qos: QosClass) -> CpuAssignment:
    return CpuAssignment(qos)
