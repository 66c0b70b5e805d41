"""Converts the engine's answers and commands to messages for executors. Only fields that differ
between the value and the message need an entry in `WRITINGS`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from finegrain.rpc.mapping.writer import As, FromValue, Writing
from finegrain.rpc.wire import duration_ms_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import task_executor_pb2 as te_pb2
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.engine.model.events import RegistrationAnswer, ReportAnswer


def _releases(slots: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    return [{"allocation_id": each, "generation": generation} for each, generation in slots]


def _reuse_numbers(slots: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    return [
        {"allocation_id": each, "generation": generation, "reuse_number": number}
        for each, generation, number in slots
    ]


def _frees(command: SendFree) -> list[te_pb2.SlotFree]:
    return [
        te_pb2.SlotFree(
            allocation_id=allocation_id,
            generation=generation,
            grace=None if grace_ms is None else duration_ms_to_proto(grace_ms),
        )
        for allocation_id, generation, grace_ms in command.slots
    ]


WRITINGS = (
    Writing(
        RegistrationAnswer,
        rm_pb2.RegisterExecutorResponse,
        {"unowned_slots": As("unowned", _releases)},
        given="rm_epoch report_interval lost_timeout protocol_version denied epoch_proof"
        " authorities_sha256",
    ),
    Writing(
        ReportAnswer,
        rm_pb2.ReportSlotsResponse,
        {
            "unowned_slots": As("unowned", _releases),
            "reused_slots": As("reused_slots", _reuse_numbers),
        },
        given="rm_epoch denied epoch_proof authorities_sha256",
    ),
    Writing(
        SendAllocate,
        te_pb2.AllocateSlotsRequest,
        {"allocations": "orders"},
        kept="address",
        given="rm_epoch epoch_proof",
    ),
    Writing(
        SendFree,
        te_pb2.FreeSlotsRequest,
        {"slots": FromValue(_frees, ("slots",))},
        kept="address",
        given="rm_epoch epoch_proof",
    ),
    Writing(
        SendResize,
        te_pb2.TaskExecutorServiceResizeSlotRequest,
        {
            "resize_number": "resize.number",
            "memory_bytes": "resize.profile.booked_memory_bytes",
        },
        parts="resize",
        kept="address resize.wait_for_use resize.arrival_number",
        given="rm_epoch epoch_proof",
    ),
)
