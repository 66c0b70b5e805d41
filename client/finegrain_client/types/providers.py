"""Defines the executors that the resource manager requests. `status.py` describes the form of all
values.
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
    provider: str  # kind of provider that starts executors, for example "process" or "command"
    total: Mapping[str, int]
    labels: Mapping[str, str]
    cost: float  # cost without a unit, which is only compared with the cost of other shapes
    count_max: int  # 0 if there is no limit
    executors: Mapping[str, int]  # count by state ("asked", "started", "registered", "stopping")
    # before this time, no new executor is requested; None if there is no back-off
    backoff_until_time: datetime | None
    failures: int  # number of failed starts in a row
    last_failure: str


@dataclass(frozen=True, slots=True)
class ProvidedExecutor(Value):
    """One executor that was requested from a provider. The executor is listed until it has been
    removed.
    """

    executor_id: str
    shape: str
    state: ProvidedExecutorState
    cause: str  # the reason why the executor was requested
    message: str  # the latest event of the executor, for people
    ask_time: datetime | None
    # the executor is given up if it has not registered before this time
    deadline_time: datetime | None
    # The requests that are planned on the executor, as texts "N of PROFILE".
    planned: tuple[str, ...]
    planned_requests: int
    handle: str  # the provider's name of the executor


@dataclass(frozen=True, slots=True)
class Providers(Value):
    """The state of scaling: which executors the resource manager can start, and has started.
    Without providers, all lists are empty.
    """

    shapes: tuple[ExecutorShape, ...]
    executors: tuple[ProvidedExecutor, ...]  # sorted by age, the oldest first
    minimum: Mapping[str, int]  # smallest total of all executors
    maximum: Mapping[str, int]  # largest total of all executors; an absent dimension has no limit
    # total of the requested executors and of the executors that are not lost
    present: Mapping[str, int]
    idle_timeout_s: float | None
    unplanned: tuple[str, ...]  # waiting work for which no executor is requested, with the reason
