"""Decides which failures are allowed during a disturbance: only failures that the disturbance
cannot avoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.daemons import LOST_TIMEOUT_S

CUT_EXECUTOR_MASTER = "cut-executor-master"
"""The only network fault that does not cut off the resource manager."""


@dataclass
class Disturbance:
    """A span of wall clock time in which these processes could not work normally."""

    kind: str
    names: frozenset[str]
    start: float
    end: float = field(default=float("inf"))


def excuses_loss(
    disturbances: Sequence[Disturbance], executor: str, at: float, silence_s: float = LOST_TIMEOUT_S
) -> bool:
    """Returns whether disturbances silenced this executor for the whole timeout before `at`."""
    spans = sorted(
        (each.start, each.end)
        for each in disturbances
        if executor in each.names and each.kind != CUT_EXECUTOR_MASTER
    )
    return _covers(spans, at - silence_s + 2.0, at - 3.0)


def excuses_job_end(
    disturbances: Sequence[Disturbance], node: str, at: float, lease_s: float
) -> bool:
    """Returns whether the job master could not renew its lease for more than half of it."""
    spans = sorted(
        (each.start, each.end)
        for each in disturbances
        if any(name == node or node_of_name(name) == node for name in each.names)
        and each.kind != CUT_EXECUTOR_MASTER
    )
    return any(min(end, at) - start > lease_s / 2 for start, end in spans)


def node_of_name(name: str) -> str:
    return name.rpartition("-")[0]


def _covers(spans: Sequence[tuple[float, float]], start: float, end: float) -> bool:
    """Returns whether spans cover all of start..end, ignoring gaps of up to 3 s."""
    reach = start
    for begin, finish in spans:  # sorted by their start
        if begin <= max(start, reach + (3.0 if reach > start else 0.0)):
            reach = max(reach, finish)
    return reach >= end
