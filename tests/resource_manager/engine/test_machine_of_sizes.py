"""Random histories with many resizes, and crashes at any moment.

It has the rules, the invariants and the last step of `test_machine.py`. Here jobs have slots from
the start, and lose them less often.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import SlotState
from tests.resource_manager.engine.test_machine import HOSTS, JOBS, PROFILES, SIZES, BooksStaySound
from tests.support.properties import examples

FIRST_SLOTS = 5


class SlotsChangeTheirSizes(BooksStaySound):
    """Most events are about resizes."""

    def __init__(self) -> None:
        super().__init__()
        for name in HOSTS[1:]:
            self.cluster.register(self.cluster.executors[name])
        for number in range(FIRST_SLOTS):
            profile = PROFILES[number % len(PROFILES)]
            self._submit(JOBS[0], profile, 1, (), number % 2 == 0, True)
        self.cluster.deliver_all()

    # Leave out these rules of the base class.
    end_job = lose_the_table = forget = give_up = hold_back_a_registration = None  # type: ignore[assignment]

    @precondition(lambda self: self._allocated())
    @rule(
        data=st.data(),
        profile=st.sampled_from(SIZES),
        cpu=st.sampled_from([100, 500, 1000, 2000, 3500]),
        wait=st.booleans(),
    )
    def resize_one_that_is_granted(
        self, data: st.DataObject, profile: ResourceProfile, cpu: int, wait: bool
    ) -> None:
        self._resize(data, ResourceProfile(cpu, profile.memory_bytes), wait)

    @precondition(lambda self: self._allocated())
    @rule(data=st.data(), profile=st.sampled_from(SIZES), wait=st.booleans())
    def resize_it_again(self, data: st.DataObject, profile: ResourceProfile, wait: bool) -> None:
        self._resize(data, profile, wait)

    def _resize(self, data: st.DataObject, profile: ResourceProfile, wait: bool) -> None:
        key = data.draw(st.sampled_from(self._allocated()))
        self._ask(self.state.slots[key], profile, 0, 0, wait, operator=False)

    @precondition(lambda self: self._allocated())
    @rule(data=st.data(), release=st.sampled_from([False, True]))
    def a_slot_uses_memory_or_is_released(self, data: st.DataObject, release: bool) -> None:
        slot = self.state.slots[data.draw(st.sampled_from(self._allocated()))]
        if release:
            self.cluster.release(slot.allocation_id, job=slot.job_id)
        else:
            used = data.draw(st.sampled_from([0, 80, 200, 500]))
            self.cluster.executors[slot.executor_id].used[slot.allocation_id] = used * MIB

    def _allocated(self) -> list[tuple[str, int]]:
        slots = self.state.slots
        return sorted(key for key, slot in slots.items() if slot.state is SlotState.ALLOCATED)


class SlotsChangeTheirSizesInSmallRounds(SlotsChangeTheirSizes):
    """The same with decisions that end after each unsuccessful try, and the spread strategy."""

    classes_tried_max = 1
    strategy = "spread"


MACHINE = settings(
    max_examples=examples(100), stateful_step_count=50, suppress_health_check=list(HealthCheck)
)

TestSizes = SlotsChangeTheirSizes.TestCase
TestSizes.settings = MACHINE
TestSizesInSmallRounds = SlotsChangeTheirSizesInSmallRounds.TestCase
TestSizesInSmallRounds.settings = settings(MACHINE, max_examples=examples(50))
