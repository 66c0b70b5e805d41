"""Tests that values survive the wire unchanged, and both encodings of a slot agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finegrain.resources import ResourceProfile, extended_items
from finegrain.rpc.wire import profile_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from finegrain.v1 import task_executor_pb2 as te_pb2
from finegrain.values.bounds import CPU_MILLI_MAX
from finegrain.values.isolation import Isolation
from finegrain.values.states import GangPlacement, RequestState, SlotState
from resource_manager.engine.explain.lists import RequestView, SlotView
from resource_manager.engine.lifecycle.journal import slot_to_dict
from resource_manager.engine.model.effects import SendResize
from resource_manager.engine.model.entities import (
    GangSpec,
    Instant,
    JobEvent,
    Request,
    RequestSpec,
    Resize,
    Slot,
)
from resource_manager.service.wire import decoding, encoding
from resource_manager.service.wire.gangs import gangs_of_call
from resource_manager.service.wire.resizes import resize_event
from resource_manager.storage.rows import JOB_EVENTS

amounts = st.integers(1, 10**12)
cpus = st.integers(1, CPU_MILLI_MAX)
ids = st.from_regex(r"\A[a-z0-9][a-z0-9._-]{0,20}\Z")
profiles = st.builds(
    ResourceProfile,
    cpu_milli=cpus,
    task_heap_memory_bytes=amounts,
    managed_memory_bytes=st.integers(0, 10**12),
    extended=st.dictionaries(ids.map(lambda name: f"x{name}"), amounts, max_size=2).map(
        extended_items
    ),
)
resizes = st.builds(
    lambda number, profile, more: Resize(
        number, profile, min(profile.cpu_milli + more, CPU_MILLI_MAX)
    ),
    st.integers(1, 9),
    profiles,
    st.integers(0, 500),
)
slots = st.builds(
    Slot,
    allocation_id=ids,
    generation=st.integers(1, 9),
    job_id=ids,
    executor_id=ids,
    profile=profiles,
    cpu_limit_milli=cpus,
    pids_max=st.integers(0, 1000),
    cpus=st.sampled_from(["", "0-3"]),
    state=st.sampled_from(SlotState),
    allocated_time_ms=st.none() | st.integers(1, 10**13),
    isolation=st.none() | st.just(Isolation("quota", notes=("no memory limit",))),
    resize_number=st.integers(1, 99),
    ordered=st.none() | resizes,
    wanted=st.none() | resizes,
)


@given(slots)
def test_an_offer_says_of_a_slot_what_a_list_says(slot: Slot) -> None:
    listed = encoding.slot_status(slot, "host:1")
    data = slot_to_dict(slot, "host:1")
    event = JobEvent("job", 1, 0, slot.allocation_id, RequestState.GRANTED, slot=data)
    stored = JOB_EVENTS.decode(JOB_EVENTS.encode(event))
    assert encoding.write(rm_pb2.JobEvent, stored).slot == listed
    wished = [each for each in (slot.ordered, slot.wanted) if each is not None]
    assert [each.resize_number for each in listed.resizes] == [each.number for each in wished]
    assert [each.profile.cpu_milli for each in listed.resizes] == [
        each.profile.cpu_milli for each in wished
    ]


@given(slots)
def test_what_an_executor_reports_of_a_slot_is_taken_in_whole(slot: Slot) -> None:
    slot.state, slot.ordered, slot.wanted = SlotState.ALLOCATED, None, None
    message = slots_pb2.SlotReport(report_number=1, slots=[encoding.slot_status(slot)])
    (seen,) = decoding.report(message, "report").slots
    assert (seen.allocation_id, seen.generation) == (slot.allocation_id, slot.generation)
    assert (seen.profile, seen.cpu_limit_milli) == (slot.profile, slot.cpu_limit_milli)
    assert seen.resize_number == slot.resize_number


gangs = st.one_of(
    st.builds(
        GangSpec,
        ids,
        st.sampled_from(sorted(set(GangPlacement) - {GangPlacement.SAME_LABEL})),
        timeout_ms=st.none() | st.integers(1, 10**9),
    ),
    st.builds(GangSpec, ids, st.just(GangPlacement.SAME_LABEL), st.just("rack")),
)


@given(gangs, profiles, st.booleans(), st.booleans())
def test_a_request_and_its_gang_come_back_as_they_went(
    gang: GangSpec, profile: ResourceProfile, restart_on_loss: bool, allow_pending: bool
) -> None:
    spec = RequestSpec(
        "a",
        profile,
        profile.cpu_milli,
        10,
        (("zone", "a"),),
        "",
        allow_pending,
        restart_on_loss,
        gang.gang_id,
    )
    view = RequestView(Request(spec, "job", 7, 1_000), "a job", "WAITING_GANG", None, gang)
    message = encoding.write(rm_pb2.RequestStatus, view)
    assert decoding.slot_request(message.request, "request") == spec
    assert gangs_of_call([message.gang], [spec], {}, members_max=1) == (gang,)
    assert encoding.write(slots_pb2.Gang, gang) == message.gang


@given(slots, st.booleans())
def test_a_list_says_why_the_last_change_waits(slot: Slot, waits: bool) -> None:
    slot.wanted = Resize(9, slot.profile, slot.profile.cpu_milli) if waits else None
    message = encoding.slot_status_of_view(SlotView(slot, "host:1", "no room"))
    said = [each.message for each in message.resizes]
    assert said == [""] * (slot.ordered is not None) + ["no room"] * waits


@given(resizes)
def test_an_executor_is_told_the_size_that_was_asked_for(resize: Resize) -> None:
    asked = rm_pb2.ResourceManagerServiceResizeSlotRequest(
        allocation_id="a",
        generation=4,
        resize_number=resize.number,
        profile=profile_to_proto(resize.profile),
        cpu_limit_milli=resize.cpu_limit_milli,
        when_in_use=rm_pb2.WHEN_IN_USE_WAIT,
    )
    wish = resize_event(asked, "job")(Instant(1, 2))
    assert (wish.at, wish.job_id, wish.allocation_id) == (Instant(1, 2), "job", "a")
    assert (wish.generation, wish.resize_number, wish.wait_for_use) == (4, resize.number, True)
    assert (wish.profile, wish.cpu_limit_milli) == (resize.profile, resize.cpu_limit_milli)
    told = encoding.write(
        te_pb2.TaskExecutorServiceResizeSlotRequest,
        SendResize("host", "host:1", 2, 3, "a", 4, resize),
        rm_epoch=5,
    )
    assert (told.rm_epoch, told.registration_number, told.command_number) == (5, 2, 3)
    assert (told.executor_id, told.allocation_id, told.generation) == ("host", "a", 4)
    assert (told.resize_number, told.profile) == (resize.number, asked.profile)
    assert told.cpu_limit_milli == resize.cpu_limit_milli
    assert told.memory_bytes == resize.profile.booked_memory_bytes
