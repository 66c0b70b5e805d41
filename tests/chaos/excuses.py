"""Who was disturbed from when to when, and what that excuses.

Decides that a fault excuses only what it must. Refuses to know how faults are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.daemons import LOST_TIMEOUT_S

CUT_EXECUTOR_MASTER = "cut-executor-master"
"""The one fault that keeps nobody from the resource manager."""


@dataclass
class Disturbance:
    """From when to when (wall clock) these could not do their part."""

    kind: str
    names: frozenset[str]
    start: float
    end: float = field(default=float("inf"))


def excuses_loss(
    disturbances: Sequence[Disturbance], executor: str, at: float, silence_s: float = LOST_TIMEOUT_S
) -> bool:
    """Whether somebody kept this executor silent for the whole timeout before `at`."""
    spans = sorted(
        (each.start, each.end)
        for each in disturbances
        if executor in each.names and each.kind != CUT_EXECUTOR_MASTER
    )
    return _covers(spans, at - silence_s + 2.0, at - 3.0)


def excuses_job_end(
    disturbances: Sequence[Disturbance], node: str, at: float, lease_s: float
) -> bool:
    """Whether the job master could not renew its lease for most of it."""
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
    """Whether spans, with gaps of up to 3 s, cover all of start..end."""
    reach = start
    for begin, finish in spans:  # in order of their beginning
        if begin <= max(start, reach + (3.0 if reach > start else 0.0)):
            reach = max(reach, finish)
    return reach >= end
