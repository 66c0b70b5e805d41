"""Tests that usage survives a crash, except usage since the last checkpoint."""

from __future__ import annotations

from math import inf, isclose

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.lifecycle import usage_checkpoints
from resource_manager.engine.lifecycle.usage_checkpoints import Checkpoints, restore_usage
from resource_manager.engine.model.entities import UsageRecord
from resource_manager.engine.model.settings import Fairness
from tests.support.properties import examples

START_MS = 1_700_000_000_000
BOOKED = {"cpu_milli": 1_000}
MINUTE_MS = 60_000


class Life:
    """A tree, its clock and its written rows."""

    def __init__(self, fairness: Fairness) -> None:
        self.fairness = fairness
        self.now_ms = 5_000
        self.skew_ms = START_MS
        self.rows: dict[str, UsageRecord] = {}
        self.slots: list[tuple[str, float]] = []  # job, cost
        self.tree = self.grown()

    @property
    def time_ms(self) -> int:
        return self.now_ms + self.skew_ms

    def grown(self) -> FlowTree:
        tree = FlowTree(self.fairness, self.now_ms)
        tree.put_group("a", weight=4.0)
        tree.put_group("b")
        tree.put_group("inner", "a")
        for job, group in (("1", "inner"), ("2", "inner"), ("3", "b"), ("4", "b")):
            tree.add_job(job, group)
        for flow in tree.changed.values():  # no usage yet
            flow.changed = False
        tree.changed.clear()
        self.written = Checkpoints(tree, self.fairness)
        return tree

    def start(self, job: str, cost: float = 1.0) -> None:
        self.tree.place(job, BOOKED, 1, cost)
        self.slots.append((job, cost))
        for flow in self.tree.urgent.values():  # in the same transaction
            self.rows[flow.id] = self.written.written(flow, self.time_ms)
        self.tree.urgent.clear()

    def end(self, at: int) -> None:
        job, cost = self.slots.pop(at)
        self.tree.stop_accruing(job, cost)
        self.tree.remove_slot(job, BOOKED)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.tree.advance(self.now_ms)

    def write(self) -> int:
        tallies, self.again_ms = self.written.due(self.now_ms, self.time_ms)
        self.rows.update({tally.flow_id: tally for tally in tallies})
        return len(tallies)

    def crash(self, *, skew_ms: int = 0) -> int:
        """Starts a new incarnation, at another monotonic time and maybe with another wall clock."""
        self.now_ms = 77_000
        self.skew_ms = skew_ms
        self.tree = self.grown()
        for job, cost in self.slots:
            self.tree.adopt(job, [(BOOKED, cost)])
        return restore_usage(self.tree, self.rows.values(), self.fairness, self.time_ms)

    def received(self) -> dict[str, float]:
        return {flow.id: self.tree.usage(flow).service for flow in flows_of(self)}


def flows_of(life: Life) -> list[Flow]:
    return [*life.tree.groups.values(), *life.tree.jobs.values()]


def close(left: dict[str, float], right: dict[str, float]) -> bool:
    assert left.keys() == right.keys()
    return all(isclose(left[k], right[k], rel_tol=1e-9, abs_tol=1e-9) for k in left)


@pytest.mark.parametrize("half_life_ms", [None, 15 * MINUTE_MS])
def test_what_still_runs_loses_nothing(half_life_ms: int | None) -> None:
    life = Life(Fairness(half_life_ms=half_life_ms))
    life.start("1", 2.0)
    life.start("3")
    life.wait(7_000)
    assert life.write() == 6  # both jobs, their groups, and the root
    life.start("1")  # no row knows it
    life.wait(9_000)
    before, time_ms = life.received(), life.time_ms
    life.crash(skew_ms=time_ms - 77_000)
    assert close(life.received(), before)


def test_what_is_gone_by_then_loses_what_it_got_since_it_was_written() -> None:
    life = Life(Fairness(half_life_ms=None))
    life.start("1")
    life.wait(4_000)
    life.write()
    life.wait(3_000)
    life.end(0)
    life.wait(1_000)
    time_ms = life.time_ms
    assert life.received()["job/1"] == 7.0
    life.crash(skew_ms=time_ms - 77_000)
    assert life.received() == {
        "group/a": 4.0,
        "group/inner": 4.0,
        "group/b": 0.0,
        "job/1": 4.0,
        "job/2": 0.0,
        "job/3": 0.0,
        "job/4": 0.0,
    }


def test_time_that_passed_while_nobody_led_counts() -> None:
    life = Life(Fairness(half_life_ms=15 * MINUTE_MS))
    life.start("1")
    life.wait(10_000)
    life.end(0)
    life.start("3")
    life.write()
    served = life.received()["job/1"]
    time_ms = life.time_ms
    life.crash(skew_ms=time_ms + 15 * MINUTE_MS - 77_000)
    assert life.received()["job/1"] == pytest.approx(served / 2)
    # It ran all the time: 15 minutes, of which the first ones count least.
    assert life.received()["job/3"] == pytest.approx(900 / 0.6931471805599453 / 2)


def test_a_clock_that_was_set_back_neither_pays_back_nor_charges() -> None:
    life = Life(Fairness(half_life_ms=15 * MINUTE_MS))
    life.start("1")
    life.start("3", 0.25)
    life.wait(8_000)
    life.write()
    before = life.received()
    life.crash(skew_ms=START_MS - 30 * 24 * 60 * MINUTE_MS)
    assert close(life.received(), before)
    life.wait(1_000)
    assert life.received()["job/1"] > before["job/1"]


def test_tallies_of_another_measure_count_for_nothing() -> None:
    life = Life(Fairness(usage_measure="slots"))
    life.start("1")
    life.wait(60_000)
    life.write()
    life.rows["job/over"] = UsageRecord(
        "job/over", "slots", 1.0, 0.0, START_MS
    )  # it would be written again
    life.fairness = Fairness(usage_measure="cpu")
    assert life.crash(skew_ms=START_MS + 60_000) == 4
    assert set(life.received().values()) == {0.0}
    life.wait(2_000)
    assert life.received()["job/1"] == pytest.approx(2.0, rel=0.01)
    life.write()
    del life.rows["job/over"]
    assert {row.measure for row in life.rows.values()} == {"cpu"}


def test_who_comes_after_a_restart_starts_level_with_who_runs() -> None:
    life = Life(Fairness(half_life_ms=None))
    life.start("1")
    life.wait(100_000)
    life.write()
    life.crash(skew_ms=START_MS + 28_000)
    life.tree.wait("2", 9, 1)
    assert life.tree.usage(life.tree.jobs["2"]).total == 100.0


def test_rows_are_written_a_few_at_a_time_and_only_what_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage_checkpoints, "STORED_AT_ONCE", 2)
    life = Life(Fairness(usage_interval_ms=10_000))
    assert life.write() == 0  # nothing has changed
    assert life.again_ms == life.now_ms + 10_000
    life.start("1")
    life.end(0)
    life.start("3")
    life.wait(10_000)
    counts = []
    while True:
        counts.append(life.write())
        if life.again_ms - life.now_ms > 200:
            break
        life.wait(life.again_ms - life.now_ms)
    assert counts == [2, 2, 2]
    assert life.again_ms == 5_000 + 20_000
    life.wait(life.again_ms - life.now_ms)
    life.write()
    life.wait(200)
    assert life.write() == 1  # of job 3, its group and the root: job 1 has not changed since
    assert life.rows["job/1"].time_ms < life.rows["job/3"].time_ms


class Lives(RuleBasedStateMachine):
    """Random histories with crashes.

    Usage differs by at most one interval of accrual from a run without crashes, plus the usage in a
    time that a clock hides because it was set back.
    """

    half_life_s = inf

    def __init__(self) -> None:
        super().__init__()
        half_life_ms = None if self.half_life_s == inf else int(self.half_life_s * 1_000)
        fairness = Fairness(half_life_ms=half_life_ms, usage_interval_ms=10_000)
        self.life, self.true = Life(fairness), Life(fairness)
        self.life.write()
        self.peaks: dict[str, float] = {}  # highest rate since the last comparison

    @rule(job=st.sampled_from("1234"), cost=st.sampled_from([0.5, 1.0, 3.0]))
    def starts(self, job: str, cost: float) -> None:
        self.life.start(job, cost)
        self.true.start(job, cost)

    @precondition(lambda self: self.life.slots)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.life.slots) - 1))
        self.life.end(at)
        self.true.end(at)

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.life.wait(1_000)
            self.true.wait(1_000)
            if self.life.now_ms >= self.life.again_ms:
                self.life.write()

    @rule(back_s=st.integers(0, 20))
    def crashes(self, back_s: int) -> None:
        self.life.crash(skew_ms=self.life.time_ms - back_s * 1_000 - 77_000)
        true, found = self.true.received(), self.life.received()
        hidden = 1 - 0.5 ** (back_s / self.half_life_s)
        for flow_id, service in found.items():
            lost = self.peaks.get(flow_id, 0.0) * (10 + back_s) + service * hidden
            assert abs(true[flow_id] - service) <= lost + 1e-6
        for flow in flows_of(self.true):  # both are compared from here on
            self.true.tree.set_usage(flow, found[flow.id], 0.0)
        self.life.write()
        self.peaks = {}

    @invariant()
    def looked_at(self) -> None:
        for flow in flows_of(self.life):
            self.peaks[flow.id] = max(self.peaks.get(flow.id, 0.0), flow.rate)
            assert flow.rate == sum(
                cost
                for job, cost in self.life.slots
                if flow in (self.life.tree.jobs[job], *self.life.tree.jobs[job].ancestors())
            )


class DecayingLives(Lives):
    half_life_s = 20.0


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=examples(40), stateful_step_count=25)
TestDecayingLives = DecayingLives.TestCase
TestDecayingLives.settings = TestLives.settings
