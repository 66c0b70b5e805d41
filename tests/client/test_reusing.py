"""Tests of slots that are reused for further requests of their job, or released."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

import finegrain_client as fg
from finegrain.errors import Reason
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.client.scripted import Scripted, eventually

EXPLAINED = """
request { allocation_id: "some-request" state: REQUEST_STATE_PENDING }
steps {
  flow { name: "default" weight: 1 tally: 412 waiting: 5 }
  position: 2
  backlogged: 2
  ahead { name: "medium" weight: 4 tally: 103 }
  summary: "group default is served after group medium"
}
limits { group: "nightly" dimension: "cpu_milli" used: 7500 asked: 1000 maximum: 8000 }
reservation {
  allocation_id: "some-request"
  executors { executor_id: "host-a" held { cpu_milli: 4000 } missing { cpu_milli: 1000 } }
  since_time { seconds: 1700000000 }
}
"""


async def granted_and_waiting(
    servant: Scripted, job: fg.Job, count: int
) -> tuple[fg.Slot, list[fg.Request]]:
    """Returns a granted slot, and requests that wait."""
    (request,) = await job.request_slots(fg.SlotSpec())
    slot = await request.granted(timeout_s=10)
    servant.auto_grant = False
    return slot, await job.request_slots(fg.SlotSpec(count=count))


async def test_a_slot_goes_on_and_the_request_has_ended(servant: Scripted, job: fg.Job) -> None:
    slot, (first, second) = await granted_and_waiting(servant, job, 2)
    assert await slot.reuse_for(first)
    assert await slot.reuse_for(second.allocation_id, grace_s=2)
    one, two = (each.slots[0] for each in servant.calls["ReuseSlots"])
    assert (one.allocation_id, one.generation) == (slot.allocation_id, 1)
    assert [one.for_allocation_id, two.for_allocation_id] == [
        first.allocation_id,
        second.allocation_id,
    ]
    assert servant.calls["ReuseSlots"][1].grace.ToMilliseconds() == 2000
    assert not slot.has_ended
    await eventually(lambda: second.has_ended)
    assert (first.state, first.reason) == (fg.RequestState.RELEASED, Reason.REUSED)
    with pytest.raises(fg.RequestEnded):
        await first.granted(timeout_s=10)
    assert [each.allocation_id for each in job.requests] == [slot.allocation_id]


async def test_a_slot_that_may_not_go_on_was_given_back(servant: Scripted, job: fg.Job) -> None:
    servant.others_first = True
    slot, waiting = await granted_and_waiting(servant, job, 1)
    assert not await slot.reuse_for(waiting[0])
    assert slot.has_ended
    assert not waiting[0].has_ended
    await slot.release()  # it is released already: nothing more to send
    assert not servant.calls["ReleaseSlots"]


async def test_many_are_asked_about_in_one_call(servant: Scripted, job: fg.Job) -> None:
    requests = await job.request_slots(fg.SlotSpec(count=3))
    slots = [await each.granted(timeout_s=10) for each in requests]
    servant.auto_grant = False
    waiting = await job.request_slots(fg.SlotSpec(count=3))
    outcomes = await job.reuse(list(zip(slots, waiting, strict=True)))
    assert [each.ok for each in outcomes] == [True, True, True]
    assert [each.id for each in outcomes] == [each.allocation_id for each in slots]
    assert len(servant.calls["ReuseSlots"]) == 1


async def test_an_explanation_has_steps_limits_and_what_is_held(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.explained = text_format.Parse(EXPLAINED, rm_pb2.ExplainResponse())
    found = await cluster.explain("some-request")
    (step,) = found.steps
    assert (step.flow.name, step.position, step.ahead[0].name) == ("default", 2, "medium")
    assert step.ahead[0].tally == 103.0
    assert found.limits == (fg.GroupLimit("nightly", "cpu_milli", 7500, 1000, 8000),)
    assert found.reservation is not None
    (held,) = found.reservation.executors
    assert (held.executor_id, held.held, held.missing) == (
        "host-a",
        {"cpu_milli": 4000},
        {"cpu_milli": 1000},
    )
    assert found.held_for_others == ()
