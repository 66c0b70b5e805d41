"""Executors that the resource manager requests; see `status.py` for the form of all values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from finegrain.mapping.value import Value
from finegrain.values.states import ProvidedExecutorState


@dataclass(frozen=True, slots=True)
class ExecutorShape(Value):
    """One kind of executor that a provider can start."""

    name: str
    provider: str  # kind of provider that starts executors, for example "process" or "command"
    total: Mapping[str, int]
    labels: Mapping[str, str]
    cost: float  # has no unit; it is only compared with the cost of other shapes
    count_max: int  # 0: no limit
    executors: Mapping[str, int]  # count by state ("asked", "started", "registered", "stopping")
    backoff_until_time: datetime | None  # no new executor before this time; None: no back-off
    failures: int  # number of failed starts in a row
    last_failure: str


@dataclass(frozen=True, slots=True)
class ProvidedExecutor(Value):
    """One executor that was requested from a provider. It is listed until it has been removed."""

    executor_id: str
    shape: str
    state: ProvidedExecutorState
    cause: str  # why it was requested
    message: str  # the latest news about it, for people
    ask_time: datetime | None
    deadline_time: datetime | None  # it is given up if it has not registered by then
    planned: tuple[str, ...]  # requests that are planned on it, as "N of PROFILE"
    planned_requests: int
    handle: str  # the provider's name for it


@dataclass(frozen=True, slots=True)
class Providers(Value):
    """How the resource manager scales the cluster. Without providers, all lists are empty."""

    shapes: tuple[ExecutorShape, ...]
    executors: tuple[ProvidedExecutor, ...]  # oldest first
    minimum: Mapping[str, int]  # of all executors together
    maximum: Mapping[str, int]  # of all executors together; an absent dimension has no limit
    present: Mapping[str, int]  # of requested executors and of executors that are not lost
    idle_timeout_s: float | None
    unplanned: tuple[str, ...]  # waiting work for which no executor is requested, with the reason
