"""Values about how the cluster scales; see `status.py` for the form of all values."""

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
    provider: str  # what starts it, for example "process" or "command"
    total: Mapping[str, int]
    labels: Mapping[str, str]
    cost: float  # only compared with that of other shapes
    count_max: int  # 0: no limit
    executors: Mapping[str, int]  # by state ("asked", "started", "registered", "stopping")
    backoff_until_time: datetime | None  # after failures: no new ones before; None: at once
    failures: int  # in a row
    last_failure: str


@dataclass(frozen=True, slots=True)
class ProvidedExecutor(Value):
    """One executor that was requested from a provider, until nothing of it is left."""

    executor_id: str
    shape: str
    state: ProvidedExecutorState
    cause: str  # why it was requested
    message: str  # what has happened since
    ask_time: datetime | None
    deadline_time: datetime | None  # given up then if it has not registered
    planned: tuple[str, ...]  # requests that are planned on it, as "N of PROFILE"
    planned_requests: int
    handle: str  # its name at the provider


@dataclass(frozen=True, slots=True)
class Providers(Value):
    """How the cluster scales by itself. All lists are empty if no provider is configured."""

    shapes: tuple[ExecutorShape, ...]
    executors: tuple[ProvidedExecutor, ...]  # oldest first
    minimum: Mapping[str, int]  # of all executors together
    maximum: Mapping[str, int]  # of all executors together; an absent dimension has no limit
    present: Mapping[str, int]  # of executors that were requested or are not lost
    idle_timeout_s: float | None
    unplanned: tuple[str, ...]  # waiting work for which no executor is requested, with the reason
