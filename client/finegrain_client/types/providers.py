"""What the client returns about how the cluster grows and shrinks; see `status.py` for the shape of
all values.
"""

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
    provider: str  # who starts it, for example "process" or "command"
    total: Mapping[str, int]
    labels: Mapping[str, str]
    cost: float  # only compared with other shapes'
    count_max: int  # 0: no limit
    executors: Mapping[str, int]  # by state ("asked", "started", "registered", "stopping")
    backoff_until_time: datetime | None  # after failures: not asked for before; None: at once
    failures: int  # in a row
    last_failure: str


@dataclass(frozen=True, slots=True)
class ProvidedExecutor(Value):
    """One executor that was asked for, until nothing of it is left."""

    executor_id: str
    shape: str
    state: ProvidedExecutorState
    cause: str  # why it was asked for
    message: str  # what went on since
    ask_time: datetime | None
    deadline_time: datetime | None  # given up then; only while it has not registered
    planned: tuple[str, ...]  # requests that are planned on it, as "N of PROFILE"
    planned_requests: int
    handle: str  # what its provider calls it


@dataclass(frozen=True, slots=True)
class Providers(Value):
    """How the cluster grows and shrinks by itself; all empty where no provider is set up."""

    shapes: tuple[ExecutorShape, ...]
    executors: tuple[ProvidedExecutor, ...]  # oldest first
    minimum: Mapping[str, int]  # what all executors together are to have at least
    maximum: Mapping[str, int]  # likewise at most; an absent dimension has no limit
    present: Mapping[str, int]  # what those that are not lost, or were asked for, have
    idle_timeout_s: float | None
    unplanned: tuple[str, ...]  # what waits and nobody is asked for, with why
