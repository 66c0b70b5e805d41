"""Compares the time of compiled conversions with the time of conversions that are written by hand.

    python -m bench.mapping [--repeat 2000]

The benchmark measures the conversions that calls, heartbeats and restarts make most often. The
client reads a slot from a message. The resource manager writes a request and an event to messages.
The store converts a request to and from a row of its table. The compiled version and the version
written by hand run alternately. The least time of all runs counts, because other work on the host
only makes a run longer. The benchmark prints the microseconds of both versions, and their ratio.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable
from datetime import UTC
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import CpuPolicy
from finegrain.mapping.rows import Row
from finegrain.resources import ResourceProfile, extended_items
from finegrain.rpc.wire import profile_to_proto, timestamp_ms_to_proto
from finegrain.v1 import resource_manager_pb2, slots_pb2
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState
from finegrain.values.states import SlotState as ShownState
from finegrain_client.decoding import read
from finegrain_client.types.status import SlotResize, SlotStatus
from resource_manager.engine.explain.lists import RequestView
from resource_manager.engine.model.entities import JobEvent, Request, RequestSpec
from resource_manager.service.wire.encoding import write
from resource_manager.simulator.drawing import table_text
from resource_manager.storage.rows import REQUESTS
from resource_manager.storage.texts import TEXTS

NUMBER = 50
TIME_MS = 1_700_000_000_123

SLOT = slots_pb2.SlotStatus(
    allocation_id="a",
    generation=1,
    job_id="job",
    profile=profile_to_proto(ResourceProfile(1_000, 1 << 30)),
    memory_bytes=1 << 30,
    cpu_limit_milli=1_000,
    state=slots_pb2.SLOT_STATE_ALLOCATED,
    executor_id="host",
    executor_address="host:7180",
    allocated_time=timestamp_ms_to_proto(TIME_MS),
)
REQUEST = Request(RequestSpec("a", ResourceProfile(1_000)), "job", 5, TIME_MS)
VIEW = RequestView(REQUEST, "name", "WAITING_CAPACITY", None)
EVENT = JobEvent("job", 4, TIME_MS, "a", RequestState.RELEASED, "ENDED", "as asked")
EVENTS = [EVENT] * 10

PROFILE, LABELS, POLICY = (
    TEXTS[kind] for kind in (ResourceProfile, tuple[tuple[str, str], ...], CpuPolicy)
)
ROW = REQUESTS.encode(REQUEST)

_NUMBERS = {each: slots_pb2.RequestState.Value(f"REQUEST_STATE_{each}") for each in RequestState}
_STATES = {str(each): each for each in RequestState}


def slot_by_hand() -> SlotStatus:
    message = SLOT
    profile = message.profile
    timed = message.HasField("allocated_time")
    return SlotStatus(
        allocation_id=message.allocation_id,
        generation=message.generation,
        job_id=message.job_id,
        executor_id=message.executor_id,
        executor_address=message.executor_address,
        state=ShownState(slots_pb2.SlotState.Name(message.state).removeprefix("SLOT_STATE_")),
        profile=ResourceProfile(
            cpu_milli=profile.cpu_milli,
            task_heap_memory_bytes=profile.task_heap_memory_bytes,
            task_off_heap_memory_bytes=profile.task_off_heap_memory_bytes,
            managed_memory_bytes=profile.managed_memory_bytes,
            network_memory_bytes=profile.network_memory_bytes,
            extended=extended_items(profile.extended),
        ),
        memory_bytes=message.memory_bytes,
        cpu_limit_milli=message.cpu_limit_milli,
        pids_max=message.pids_max,
        cpus=message.cpus,
        isolation=read(Isolation, message.isolation) if message.HasField("isolation") else None,
        allocated_time=message.allocated_time.ToDatetime(tzinfo=UTC) if timed else None,
        resize_number=message.resize_number,
        resizes=tuple(read(SlotResize, each) for each in message.resizes)
        if message.resizes
        else (),
        assignment=read(CpuAssignment, message.assignment)
        if message.HasField("assignment")
        else None,
    )


def request_by_hand() -> resource_manager_pb2.RequestStatus:
    request, spec = VIEW.request, VIEW.request.spec
    message = resource_manager_pb2.RequestStatus(
        allocation_id=request.allocation_id,
        job_id=request.job_id,
        job_name=VIEW.job_name,
        state=_NUMBERS[request.state],
        reason=VIEW.reason,
        generation=request.generation,
        arrival_number=request.arrival_number,
        create_time=timestamp_ms_to_proto(request.create_time_ms),
        request=slots_pb2.SlotRequest(
            allocation_id=spec.allocation_id,
            profile=profile_to_proto(spec.profile) if spec.profile is not None else None,
            cpu_limit_milli=spec.cpu_limit_milli,
            pids_max=spec.pids_max,
            required_labels=dict(spec.required_labels),
            target_address=spec.target_address,
            allow_pending=spec.allow_pending,
            restart_on_loss=spec.restart_on_loss,
            gang_id=spec.gang_id,
        ),
        range_id=VIEW.range_id,
    )
    if spec.profile is not None:
        message.profile.CopyFrom(profile_to_proto(spec.profile))
    if request.end_time_ms is not None:
        message.end_time.CopyFrom(timestamp_ms_to_proto(request.end_time_ms))
    return message


def event_by_hand() -> resource_manager_pb2.JobEvent:
    message = resource_manager_pb2.JobEvent(
        sequence=EVENT.sequence,
        allocation_id=EVENT.allocation_id,
        state=_NUMBERS[EVENT.state],
        reason=EVENT.reason,
        message=EVENT.message,
        count=EVENT.count if EVENT.count > 1 else 0,
    )
    moment = message.event_time
    moment.seconds, moment.nanos = EVENT.time_ms // 1000, EVENT.time_ms % 1000 * 1_000_000
    return message


def row_by_hand() -> Row:
    spec = REQUEST.spec
    return (
        spec.allocation_id,
        REQUEST.job_id,
        REQUEST.arrival_number,
        REQUEST.create_time_ms,
        str(REQUEST.state),
        str(REQUEST.reason),
        REQUEST.message,
        REQUEST.generation,
        REQUEST.end_time_ms,
        None if spec.profile is None else PROFILE.write(spec.profile),
        spec.cpu_limit_milli,
        spec.pids_max,
        LABELS.write(spec.required_labels),
        spec.target_address,
        spec.allow_pending,
        spec.restart_on_loss,
        spec.gang_id,
        POLICY.write(spec.cpu_policy),
    )


def stored_by_hand() -> Request:
    spec = RequestSpec(
        allocation_id=ROW[0],
        profile=None if ROW[9] is None else PROFILE.read(ROW[9]),
        cpu_limit_milli=ROW[10],
        pids_max=ROW[11],
        required_labels=LABELS.read(ROW[12]),
        target_address=ROW[13],
        allow_pending=bool(ROW[14]),
        restart_on_loss=bool(ROW[15]),
        gang_id=ROW[16],
        cpu_policy=POLICY.read(ROW[17]),
    )
    return Request(
        spec=spec,
        job_id=ROW[1],
        arrival_number=ROW[2],
        create_time_ms=ROW[3],
        state=_STATES[ROW[4]],
        reason=ROW[5],
        message=ROW[6],
        generation=ROW[7],
        end_time_ms=ROW[8],
    )


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "slot, read": (slot_by_hand, lambda: read(SlotStatus, SLOT)),
    "request, written": (
        request_by_hand,
        lambda: write(resource_manager_pb2.RequestStatus, VIEW),
    ),
    "10 events, written": (
        lambda: [event_by_hand() for _ in EVENTS],
        lambda: write.each(resource_manager_pb2.JobEvent, EVENTS),
    ),
    "request, to a row": (row_by_hand, lambda: REQUESTS.encode(REQUEST)),
    "request, of a row": (stored_by_hand, lambda: REQUESTS.decode(ROW)),
}


def measured(pair: tuple[Callable[[], Any], Callable[[], Any]], repeat: int) -> list[float]:
    """Returns the microseconds of the two versions, which run alternately."""
    least = [float("inf")] * 2
    for _ in range(repeat):
        for at, function in enumerate(pair):
            least[at] = min(least[at], timeit.timeit(function, number=NUMBER))
    return [each / NUMBER * 1e6 for each in least]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repeat", type=int, default=2_000)
    args = parser.parse_args()
    rows = []
    for name, pair in PAIRS.items():
        if pair[0]() != pair[1]():
            raise SystemExit(f"{name}: the two differ")
        hand, compiled = measured(pair, args.repeat)
        rows.append([name, f"{hand:.2f}", f"{compiled:.2f}", f"{compiled / hand:.2f}"])
    print(table_text(["us", "by hand", "compiled", "ratio"], rows))


if __name__ == "__main__":
    main()
