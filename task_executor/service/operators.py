"""Keeps the quotas of operators up to date while their tasks run. A quota is the part of a slot's
managed memory that one operator of a job graph gets.

`engine/managed_memory.py` computes the quotas. The record of a task contains the task's operators.
The checkpoint contains the operators that a job master registered for a whole slot.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from finegrain.errors import FailedPrecondition, FinegrainError, Reason
from finegrain.logs import get_logger
from finegrain.mapping.json_form import JsonCodec
from finegrain.values.operators import OperatorStatus, OperatorTask, TaskOperator, TaskPeer
from finegrain.values.states import QuotaEnforcement, TaskState
from task_executor.engine.lending import Lending, PoolKey
from task_executor.engine.managed_memory import (
    ManagedMemory,
    Quota,
    read_fraction,
    read_fractions,
)
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import Slot, SlotKey
from task_executor.service.task_table import Task, TaskTable

PAGE_BYTES: Final = 32 << 10
PEERS_IN_ENVIRONMENT_BYTES_MAX: Final = 32 << 10
HARD: Final = "hard"
LIMIT_UNIT_BYTES: Final = 64 << 10  # a memory limit is a multiple of this unit
REVOKE_S: Final = 2.0  # time in which pools must return borrowed memory

log = get_logger(__name__)
_JSON = JsonCodec()


@dataclass(frozen=True, slots=True)
class SlotOperator:
    """An operator that a job master registered for a whole slot."""

    key: SlotKey
    operator_id: str
    fraction: str


class Operators:
    """The registered operators of all slots.

    Args:
        table: the slots of this executor.
        tasks: the tasks of this executor.
        page_bytes: the size of a page of managed memory.
        clock: returns the current time in seconds.
    """

    def __init__(
        self,
        table: SlotTable,
        tasks: TaskTable,
        page_bytes: int = PAGE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._tasks = tasks
        self._memory = ManagedMemory(page_bytes)
        self._used: dict[tuple[str, str], int] = {}  # bytes that pools report, by task and operator
        self._measured: Mapping[str, int] = {}  # bytes that the kernel counts, by task
        self._lending: dict[SlotKey, Lending] = {}  # slots with pools that lend and borrow
        self._clock = clock
        # called with a slot whose quotas have possibly changed
        self.on_change: Callable[[SlotKey], None] = lambda _key: None
        self.storing = asyncio.Lock()  # held while an operator or peers are added to a task
        tasks.on_end = self._task_ended

    @property
    def page_bytes(self) -> int:
        """The size of a page of managed memory, in bytes."""
        return self._memory.page_bytes

    # -- registration ------------------------------------------------------------------------

    def register_task(self, task: Task) -> None:
        """Registers all operators of a task. If an operator cannot be registered, registers no
        operator.

        Raises:
            AlreadyExists, FailedPrecondition, InvalidArgument: see `ManagedMemory.register`.
                InvalidArgument also means that a fraction is not valid.
        """
        operators = [(each.operator_id, each.fraction) for each in _operators_of(task)]
        fractions = read_fractions(operators, "operator_task.operators")
        if fractions:
            self._check_has_memory(task.key)
        self._memory.register(task.key, task.task_id, fractions)
        if task.key in self._lending:
            self._changed(task.key)  # other pools have possibly borrowed the memory of these quotas
        # The task is not in the table yet, so `_changed` does not refresh it.
        self.refresh_task(task)
        task.first_quota_bytes = _quota_bytes(task)

    def register(self, key: SlotKey, operator_id: str, fraction: str, task_id: str = "") -> Quota:
        """Registers one operator for a task or for a whole slot. Returns the operator's quota.

        Args:
            key: the slot.
            operator_id: the id of the operator.
            fraction: the fraction of the slot's managed memory that the operator gets.
            task_id: the task that runs the operator; empty: the operator belongs to the whole slot.

        Raises:
            AlreadyExists, FailedPrecondition, InvalidArgument: see `register_task`.
        """
        share = read_fraction("fraction", fraction)
        self._check_has_memory(key)
        self._memory.register(key, task_id, {operator_id: share})
        self._changed(key)
        return self._memory.quota(share, self._managed_bytes(key))

    def _check_has_memory(self, key: SlotKey) -> None:
        if not self._managed_bytes(key):
            raise FailedPrecondition(
                f"slot {key.allocation_id} has no managed memory; request some for the slot, or "
                "leave the fraction out",
                reason=Reason.MANAGED_MEMORY_EXCEEDED,
                details={"allocation_id": key.allocation_id, "available": "0"},
            )

    def withdraw(self, task: Task) -> None:
        """Frees the operators of a task that was not started."""
        self._task_ended(task)

    def _task_ended(self, task: Task) -> None:
        for pair in [each for each in self._used if each[0] == task.task_id]:
            del self._used[pair]
        if self._memory.end_task(task.key, task.task_id):
            self._changed(task.key)

    def slot_removed(self, key: SlotKey) -> None:
        """Frees all operators of a slot."""
        self._memory.end_slot(key)
        self._lending.pop(key, None)
        self.on_change(key)

    def adopt(self, of_slots: Iterable[SlotOperator]) -> None:
        """After a restart, registers all operators that were registered before the restart.

        The tasks must have been adopted before. The method logs an operator that cannot be
        registered; only a bug can cause such a failure.
        """
        for each in of_slots:
            if self._table.get(each.key) is not None:
                with _logged(each.key):
                    self._memory.register(
                        each.key, "", {each.operator_id: read_fraction("fraction", each.fraction)}
                    )
        for task in self._tasks:
            if not task.has_ended and _operators_of(task):
                with _logged(task.key):
                    operators = [(each.operator_id, each.fraction) for each in _operators_of(task)]
                    fractions = read_fractions(operators, "operators")
                    self._memory.register(task.key, task.task_id, fractions)
                self._changed(task.key)

    def of_slots(self) -> Iterator[SlotOperator]:
        """Yields the operators of whole slots. The checkpoint stores them."""
        for slot in self._table:
            for name, claim in self._memory.claims(slot.key).items():
                if not claim.task_id:
                    yield SlotOperator(slot.key, name, str(claim.fraction))

    # -- quotas ------------------------------------------------------------------------------

    def size_changed(self, key: SlotKey) -> None:
        """Recomputes the quotas of a slot. Must be called both before and after a resize."""
        if self._memory.claims(key):
            self._changed(key)

    def managed(self, key: SlotKey) -> bool:
        """Returns True if the slot has managed memory."""
        return self._managed_bytes(key) > 0

    def _managed_bytes(self, key: SlotKey) -> int:
        """Returns the managed memory from which the quotas of a slot are computed.

        During a resize, this is the managed memory of the smaller size. So when a slot shrinks,
        quotas shrink before the limit of the slot is lowered. When a slot grows, quotas grow after
        the limit is raised.
        """
        slot = self._table.get(key)
        if slot is None:
            return 0
        sizes = (slot.spec, slot.becoming or slot.spec)
        return min(each.profile.managed_memory_bytes for each in sizes)

    def task_limits(self, key: SlotKey) -> dict[str, int]:
        """Returns the memory limits of those tasks in the slot whose limit depends on the quotas of
        operators.
        """
        slot = self._table.get(key)
        if slot is None:
            return {}
        most = min(each.memory_bytes for each in (slot.spec, slot.becoming or slot.spec))
        limits = {}
        for task in self._tasks.of_slot(key):
            if task.memory_limit_bytes and task.state is TaskState.RUNNING:
                grown = _quota_bytes(task) - task.first_quota_bytes
                limit = (task.memory_limit_bytes + grown) // LIMIT_UNIT_BYTES * LIMIT_UNIT_BYTES
                limits[task.task_id] = max(min(limit, most), LIMIT_UNIT_BYTES)
        return limits

    def _changed(self, key: SlotKey) -> None:
        slot = self._table.get(key)
        if slot is None:
            return
        self._settle_lending(key)
        for task in self._tasks.of_slot(key):
            if not task.has_ended:
                self._refresh(task, slot)
        self.on_change(key)

    def refresh_task(self, task: Task) -> None:
        """Updates the status of a task's operators, if the task still runs."""
        slot = self._table.get(task.key)
        if slot is not None and not task.has_ended:
            self._refresh(task, slot)

    def _refresh(self, task: Task, slot: Slot) -> None:
        claims, managed_bytes = self._memory.claims(task.key), self._managed_bytes(task.key)
        limited = task.memory_limit_bytes and slot.isolation.memory == HARD
        statuses = []
        for each in _operators_of(task):
            claim = claims.get(each.operator_id)
            owned = claim is not None and claim.task_id in ("", task.task_id) and each.fraction
            quota = Quota(0, 0)
            if owned and claim:
                quota = self._memory.quota(claim.fraction, managed_bytes)
            pooled = self._used.get((task.task_id, each.operator_id))
            if limited:
                how, used = QuotaEnforcement.CGROUP, self._measured.get(task.task_id, 0)
            elif pooled is not None:
                how, used = QuotaEnforcement.POOL, pooled
            else:
                how, used = QuotaEnforcement.DECLARED, 0
            statuses.append(
                OperatorStatus(
                    each.operator_id,
                    each.fraction,
                    *quota,
                    used_bytes=used,
                    enforcement=how,
                    limit_bytes=self.limit(task, each.operator_id, quota.memory_bytes),
                    revoked_bytes=self._revoked(task, each.operator_id),
                )
            )
        task.operators = tuple(statuses)

    # -- use ---------------------------------------------------------------------------------

    def measured(self, memory_bytes: Mapping[str, int]) -> None:
        """Stores the memory that the kernel counts for each task."""
        self._measured = memory_bytes
        for task_id in memory_bytes:
            task = self._tasks.get(task_id)
            if task is None or not task.memory_limit_bytes or not task.operators:
                continue
            self.refresh_task(task)

    def used(self, task: Task, operator_id: str, used_bytes: int | None) -> None:
        """Stores the memory use that a pool of a task reports; None: the pool does not exist any
        more.
        """
        if used_bytes is None:
            self._used.pop((task.task_id, operator_id), None)
            lending, pool = self._lending.get(task.key), PoolKey(task.task_id, operator_id)
            if lending is not None and pool in lending:
                lending.leaves(pool, self._clock())
                self._changed(task.key)
        else:
            self._used[task.task_id, operator_id] = used_bytes
        self.refresh_task(task)

    def over_quota(self, key: SlotKey) -> bool:
        """Returns True if a pool in the slot has reported more use than its limit."""
        return any(
            self._used.get((task.task_id, each.operator_id), 0) > each.limit_bytes
            for task in self._tasks.of_slot(key)
            for each in task.operators
        )

    # -- memory that is lent -----------------------------------------------------------------

    def pool_reported(
        self, task: Task, operator_id: str, used_bytes: int, wanted_bytes: int, kept_bytes: int
    ) -> None:
        """Stores the report of a pool that lends and borrows.

        Args:
            task: the task of the pool.
            operator_id: the operator of the pool.
            used_bytes: the memory that the pool uses.
            wanted_bytes: the memory that the pool wants to use.
            kept_bytes: the limit that the pool obeys.
        """
        self._used[task.task_id, operator_id] = used_bytes
        claim = self._memory.claims(task.key).get(operator_id)
        if claim is None or claim.task_id != task.task_id:
            self.refresh_task(task)  # the task has no quota to lend
            return
        lending = self._lending.setdefault(task.key, Lending(REVOKE_S))
        pool = PoolKey(task.task_id, operator_id)
        if pool not in lending:
            quota = self._memory.quota(claim.fraction, self._managed_bytes(task.key))
            # If a task has a separate memory limit, it has memory only for its quotas. So its pools
            # cannot borrow.
            borrows = not task.memory_limit_bytes
            lending.join(pool, quota.memory_bytes, kept_bytes, borrows=borrows)
            self._settle_lending(task.key)
        lending.report(pool, wanted_bytes, kept_bytes, self._clock())
        self._changed(task.key)

    def _settle_lending(self, key: SlotKey) -> None:
        lending = self._lending.get(key)
        if lending is None:
            return
        total = room = self._managed_bytes(key)
        quotas = {}
        for name, claim in self._memory.claims(key).items():
            quota_bytes = self._memory.quota(claim.fraction, total).memory_bytes
            if (pool := PoolKey(claim.task_id, name)) in lending:
                quotas[pool] = quota_bytes
            else:
                # No pool of this operator lends memory, so its quota is not shared.
                room -= quota_bytes
        lending.changed(room, quotas, self._clock())

    def limit(self, task: Task, operator_id: str, default: int) -> int:
        """Returns the present limit of a pool. Returns `default` if the pool neither lends nor
        borrows.
        """
        lending, pool = self._lending.get(task.key), PoolKey(task.task_id, operator_id)
        return lending.limit(pool) if lending is not None and pool in lending else default

    def _revoked(self, task: Task, operator_id: str) -> int:
        lending, pool = self._lending.get(task.key), PoolKey(task.task_id, operator_id)
        return lending.revoked(pool) if lending is not None and pool in lending else 0

    def next_deadline(self, key: SlotKey) -> float | None:
        """Returns the time by which the next pool of the slot must have returned borrowed memory;
        None: no pool must return memory.
        """
        lending = self._lending.get(key)
        return lending.next_deadline() if lending is not None else None

    def overdue(self, key: SlotKey) -> list[Task]:
        """Returns the tasks with pools that have not given back borrowed memory in time."""
        lending = self._lending.get(key)
        keys = lending.overdue(self._clock()) if lending is not None else []
        tasks = [self._tasks.get(each.task_id) for each in keys]
        return [each for each in tasks if each is not None and not each.has_ended]


def operator_variables(task: Task, operators: Operators, path: Path | None) -> dict[str, str]:
    """Returns the environment variables of a task about its operators.

    Args:
        task: the task.
        operators: the registered operators.
        path: the socket of the slot; None: the slot has no socket.
    """
    variables = {"FINEGRAIN_SLOT_SOCKET": str(path)} if path else {}
    if task.operator_task:
        variables["FINEGRAIN_TASK"] = _task_variable(task, operators)
    return variables


def _task_variable(task: Task, operators: Operators) -> str:
    """Returns the value of FINEGRAIN_TASK: the operators of the task and its peers, as JSON.

    If the list of peers is too long for an environment variable, `peers` is null, and the task
    requests its peers at the socket of its slot.
    """
    work = task.operator_task or OperatorTask(())
    peers: Any = peers_json(work.peers)
    if len(json.dumps(peers)) > PEERS_IN_ENVIRONMENT_BYTES_MAX:
        peers = None
    content = {
        **quotas_json(task, operators),
        "subtask_index": work.subtask_index,
        "parallelism": work.parallelism,
        "ports": list(work.ports),
        "peers": peers,
        "memory_limit_bytes": task.memory_limit_bytes,
    }
    return json.dumps(content, separators=(",", ":"))


def quotas_json(task: Task, operators: Operators) -> dict[str, Any]:
    """Returns the quotas of a task as JSON data."""
    names = ("operator_id", "fraction", "quota_bytes", "quota_pages")
    found = []
    for each in task.operators:
        entry = {name: getattr(each, name) for name in names}
        # After a restart, this front does not know the limit of a pool that lends or borrows. The
        # pool then keeps its last limit until it reports this limit.
        if (limit := operators.limit(task, each.operator_id, -1)) >= 0:
            entry["limit_bytes"] = limit
        found.append(entry)
    return {"page_bytes": operators.page_bytes, "operators": found}


def peers_json(peers: tuple[TaskPeer, ...]) -> list[dict[str, Any]]:
    """Returns peers as JSON data."""
    return [_JSON.to_json(each) for each in peers]


def _quota_bytes(task: Task) -> int:
    return sum(each.quota_bytes for each in task.operators)


def _operators_of(task: Task) -> tuple[TaskOperator, ...]:
    given = task.operator_task.operators if task.operator_task else ()
    return given + task.registered


@contextmanager
def _logged(key: SlotKey) -> Iterator[None]:
    """Logs the error of a registration instead of raising it."""
    try:
        yield
    except FinegrainError as error:
        log.error("operator_not_adopted", allocation_id=key.allocation_id, error=error.message)
