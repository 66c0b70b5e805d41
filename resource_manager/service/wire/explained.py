"""Converts the engine's explanations to messages. Only fields that differ between the value and the
message need an entry in `WRITINGS`.
"""

from __future__ import annotations

from finegrain.rpc.mapping.writer import As, FromValue, Writing
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.explain.fairness import ComparedFlow, Step
from resource_manager.engine.explain.requests import Explanation
from resource_manager.engine.explain.reservations import ReservedExecutorView
from resource_manager.engine.fairness.flows import GROUP, ROOT
from resource_manager.engine.fairness.quotas import QuotaBlock
from resource_manager.engine.model.host_refusal import HostRefusal


def _group(flow_id: str) -> str:
    return flow_id.removeprefix(GROUP) if flow_id.startswith(GROUP) else ""


def _user(flow_id: str) -> str:
    return "" if flow_id == ROOT or flow_id.startswith(GROUP) else flow_id


WRITINGS = (
    Writing(
        Explanation,
        rm_pb2.ExplainResponse,
        {"request": "view"},
        given="blocked_by",
        kept="blocked_by",
    ),
    Writing(HostRefusal, rm_pb2.CpuVerdict, {"code": "blocker", "message": "text"}),
    Writing(
        QuotaBlock,
        rm_pb2.GroupLimit,
        {
            # Two empty names stand for the whole cluster.
            "group": As("group_id", _group),
            "user": As("group_id", _user),
            "asked": "need",
        },
    ),
    Writing(
        ComparedFlow,
        rm_pb2.FlowTally,
        {
            "below_minimum": FromValue(
                lambda found: found.minimum_reached is not None, ("minimum_reached",)
            )
        },
        kept="raised lookahead",
    ),
    Writing(Step, rm_pb2.ChoiceStep),
    Writing(ReservedExecutorView, rm_pb2.ReservedExecutor, kept="missing_slots"),
)
