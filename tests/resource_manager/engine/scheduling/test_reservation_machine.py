"""Random histories in which one skipped try is enough for a reservation, with reuse of slots.

The invariants hold, and no reservation lacks a waiting owner.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from finegrain.resources import fits, total_of
from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.settings import Fairness
from tests.resource_manager.engine.scheduling.test_gang_machine import GangsStayWhole
from tests.resource_manager.engine.test_machine import JOBS, MACHINE, PROFILES
from tests.support.properties import examples


class NothingIsHeldForNobody(GangsStayWhole):
    """Jobs, gangs and resizes, of which two may have a reservation at once."""

    fairness = Fairness(starvation_timeout_ms=2_000, starvation_placements=1, reservations_max=2)

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[tuple[str, int, str], str] = {}

    @initialize()
    def a_full_cluster(self) -> None:
        """Fills the cluster with small slots, and queues more of them."""
        specs = tuple(RequestSpec(f"r{self.made + n}", PROFILES[0]) for n in range(12))
        self.made += len(specs)
        self.acknowledged.update(each.allocation_id for each in specs)
        self.cluster.submit(*specs, job=JOBS[0])
        self.cluster.deliver_all()

    @rule(data=st.data(), same=st.booleans())
    def reuse(self, data: st.DataObject, same: bool) -> None:
        """Asks to reuse a slot for a waiting request, or repeats a call."""
        if same and self.answers:
            self._ask_again(data.draw(st.sampled_from(sorted(self.answers))))
            return
        granted, waiting = [], []
        for request in self.state.requests.values():
            if request.job_id == JOBS[0]:
                granted += [request] * (request.state is RequestState.GRANTED)
                waiting += [request] * (request.state is RequestState.PENDING)
        if granted and waiting:
            slot, next_one = (
                data.draw(st.sampled_from(granted)),
                data.draw(st.sampled_from(waiting)),
            )
            self._ask_again((slot.allocation_id, slot.generation, next_one.allocation_id))

    def _ask_again(self, asked: tuple[str, int, str]) -> None:
        running = {key for key, slot in self.state.slots.items() if slot.state == "ALLOCATED"}
        (outcome,) = self.cluster.reuse(asked, job=JOBS[0])
        named = self.state.requests[asked[2]]
        if not outcome.reason:
            assert (named.state, named.reason) == ("RELEASED", "REUSED")
            # A repeated call for a granted reuse changes nothing, whatever happened to the slot.
            after = {key for key, slot in self.state.slots.items() if slot.state == "ALLOCATED"}
            assert running <= after
        before = self.answers.setdefault(asked, outcome.reason)
        if not before:
            assert not outcome.reason

    @invariant()
    def what_came_since_takes_nothing_of_what_is_held(self) -> None:
        """When all slots that are older than a reservation have ended, all reserved capacity is
        free.
        """
        for host in self.state.hosts.values():
            if host.reserved is None or host.shrunk:
                continue
            came = [s.booked for key, s in host.slots.items() if key not in host.reserved.before]
            total = host.executor.registration.total
            assert fits(total_of((host.reserved.amounts, *came)), total)


class NothingIsHeldForNobodySpread(NothingIsHeldForNobody):
    """The same test with the other strategy, and decisions that end after each unsuccessful try."""

    strategy = "spread"
    classes_tried_max = 1


TestReservations = NothingIsHeldForNobody.TestCase
TestReservations.settings = settings(MACHINE, max_examples=examples(30))
TestReservationsSpread = NothingIsHeldForNobodySpread.TestCase
TestReservationsSpread.settings = settings(MACHINE, max_examples=examples(15))
