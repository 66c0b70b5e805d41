"""Tests of several resource managers: the client finds the leader, and follows changes."""

from __future__ import annotations

from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import Reason
from tests.client.scripted import Scripted, serving


class OneOfTwo(Scripted):
    """A resource manager that is a standby while `leader` names another one."""

    def __init__(self) -> None:
        super().__init__()
        self.leader: Scripted | None = None
        self.sent_away = 0

    async def _begin(self, method: str, request: Any, context: Any) -> None:
        if self.leader is not None:
            self.sent_away += 1
            details = {"leader_address": self.leader.address}
            self.failures[method].appendleft(
                fg.Unavailable("stands by", reason=Reason.NOT_LEADER, details=details)
            )
        await super()._begin(method, request, context)

    async def give_way_to(self, other: OneOfTwo) -> None:
        """Makes `other` the leader with the same state; ends all streams here."""
        other.events = self.events
        self.leader, other.leader = other, None
        async with self.changed:
            if self.live["WatchJob"]:
                over = fg.Unavailable("stepping down", reason=Reason.NOT_LEADER)
                self.failures["WatchJob"].append(over)
            self.changed.notify_all()


@pytest.mark.parametrize("listed", ["both", "the standby alone"])
async def test_a_standby_sends_callers_to_the_leader(listed: str) -> None:
    standby, leader = OneOfTwo(), OneOfTwo()
    standby.leader = leader
    async with serving(standby), serving(leader):
        addresses = [standby.address, leader.address] if listed == "both" else [standby.address]
        async with fg.connect(addresses, budget_s=20) as cluster:
            for _ in range(3):
                assert len(await cluster.executors()) == 3
            assert cluster.address == leader.address
    assert standby.sent_away == 1


async def test_a_job_goes_on_with_whoever_leads() -> None:
    one, two = OneOfTwo(), OneOfTwo()
    two.leader = one
    async with serving(one), serving(two):
        addresses = f"{one.address},{two.address}"
        async with (
            fg.connect(addresses, budget_s=20) as cluster,
            cluster.job("goes on") as job,
        ):
            events = job.events()
            for leader, other in ((one, two), (two, one), (one, two)):
                (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=100))
                await request.granted(timeout_s=20)
                assert cluster.address == leader.address
                await leader.give_way_to(other)
            heard = [await anext(events) for _ in range(3)]
            assert [each.sequence for each in heard] == [1, 2, 3]
            # Each stream continued where the previous one had ended.
            assert one.calls["WatchJob"][0].from_sequence == 1
            assert two.calls["WatchJob"][-1].from_sequence in (2, 4)


async def test_an_overloaded_leader_is_not_left(servant: Scripted) -> None:
    servant.failures["ListExecutors"].append(fg.ResourceExhausted("slow down", retry_after_s=0.05))
    addresses = [servant.address, "127.0.0.1:1"]
    async with fg.connect(addresses, budget_s=20) as cluster:
        await cluster.executors()
        assert cluster.address == servant.address


async def test_one_that_is_gone_is_passed_over(servant: Scripted) -> None:
    addresses = ["127.0.0.1:1", "127.0.0.1:2", servant.address]
    async with fg.connect(addresses, budget_s=20) as cluster:
        await cluster.executors()
        assert cluster.address == servant.address
