"""Changes the states of entities by the tables of `state_tables.py`. No other code changes states.
This module also stores the latest moves, for error messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from finegrain.errors import IllegalTransition
from resource_manager.engine.model.state_tables import (
    DRAIN,
    GANG,
    JOB,
    REACH,
    REGISTRATION,
    REQUEST,
    RESIZE,
    SLOT,
    DrainInput,
    DrainState,
    GangInput,
    InputT,
    JobInput,
    Reachability,
    ReachInput,
    RegistrationInput,
    RequestInput,
    ResizeInput,
    ResizeState,
    SlotInput,
    StateT,
    StateTable,
)

if TYPE_CHECKING:
    from finegrain.values.states import ExecutorState, RequestState, SlotState
    from resource_manager.engine.model.entities import Executor, Gang, GangState, Job, Request, Slot

HISTORY_LENGTH = 4_000
"""This number of the latest moves of all entities is stored for the message of an
`IllegalTransition`.
"""

HISTORY_SHOWN = 8
"""An error message shows at most this many moves of its entity."""


class Transitions:
    """Moves entities, and stores the latest moves.

    All `move_*` methods raise `IllegalTransition` if the table does not list the move. All
    `restore_*` methods raise `IllegalTransition` if the table does not list the state as
    restorable.
    """

    def __init__(self) -> None:
        self._moves: deque[tuple[str, str, str, str]] = deque(maxlen=HISTORY_LENGTH)

    def of(self, entity: str) -> list[str]:
        """Returns the latest moves of one entity, oldest first, such as "PENDING -PLACE->
        ALLOCATING".
        """
        moves = [
            f"{before} -{what}-> {after}"
            for name, before, what, after in self._moves
            if name == entity
        ]
        return moves[-HISTORY_SHOWN:]

    def move_request(self, request: Request, what: RequestInput) -> None:
        """Moves a request."""
        request.state = self._moved(REQUEST, request.spec.allocation_id, request.state, what)

    def move_slot(self, slot: Slot, what: SlotInput) -> None:
        """Moves a slot. A slot that vanishes keeps its last state. The caller deletes the slot."""
        name = f"{slot.allocation_id}/{slot.generation}"
        after = self._after(SLOT, name, slot.state, what)
        if after is not None:
            slot.state = after

    @contextmanager
    def moving_resize(self, slot: Slot, what: ResizeInput) -> Iterator[None]:
        """Moves a slot's resizes. The body of the `with` statement must change the slot, so that
        its new state is the next state in the table.

        Raises:
            IllegalTransition: the body has given the slot another state, or the table does not list
                the move.
        """
        name = f"{slot.allocation_id}/{slot.generation}"
        due = self._moved(RESIZE, name, resize_state(slot), what)
        yield
        if resize_state(slot) is not due:
            raise self._illegal(RESIZE.title, name, resize_state(slot), what)

    def move_gang(self, gang: Gang, what: GangInput) -> None:
        """Moves a gang."""
        gang.state = self._moved(GANG, gang.gang_id, gang.state, what)

    def move_job(self, job: Job, what: JobInput) -> None:
        """Moves a job."""
        job.state = self._moved(JOB, job.job_id, job.state, what)

    def move_executor(self, executor: Executor, what: RegistrationInput) -> None:
        """Moves the registration of an executor."""
        executor.state = self._moved(REGISTRATION, executor.executor_id, executor.state, what)
        executor.lost = executor.state is REGISTRATION.states.LOST

    def move_drain(self, executor: Executor, what: DrainInput) -> None:
        """Moves the drain of an executor."""
        before = DrainState.DRAINING if executor.draining else DrainState.OPEN
        after = self._moved(DRAIN, executor.executor_id, before, what)
        executor.draining = after is DrainState.DRAINING

    def move_reach(self, executor_id: str, *, unreachable: bool, what: ReachInput) -> bool:
        """Moves the reachability of an executor.

        Args:
            executor_id: the executor.
            unreachable: True if the executor was unreachable until now.
            what: the input of the state table.

        Returns:
            True if the executor is unreachable after the move.
        """
        before = Reachability.UNREACHABLE if unreachable else Reachability.REACHABLE
        return self._moved(REACH, executor_id, before, what) is Reachability.UNREACHABLE

    def restore_request(self, request: Request, state: RequestState) -> None:
        """Sets the state of a stored request, which the caller derived from its slot."""
        request.state = self._restored(REQUEST, request.spec.allocation_id, state)

    def restore_slot(self, slot: Slot, state: SlotState) -> None:
        """Sets the state of a stored slot, which the caller derived from its request."""
        slot.state = self._restored(SLOT, f"{slot.allocation_id}/{slot.generation}", state)

    def restore_gang(self, gang: Gang, state: GangState) -> None:
        """Sets the state of a stored gang, which the caller derived from its members."""
        gang.state = self._restored(GANG, gang.gang_id, state)

    def restore_executor(self, executor: Executor, state: ExecutorState) -> None:
        """Sets the state of a stored executor."""
        executor.state = self._restored(REGISTRATION, executor.executor_id, state)

    def _moved(
        self, table: StateTable[StateT, InputT], entity: str, before: StateT, what: InputT
    ) -> StateT:
        after = self._after(table, entity, before, what)
        if after is None:
            raise self._illegal(table.title, entity, before, what)
        return after

    def _after(
        self, table: StateTable[StateT, InputT], entity: str, before: StateT, what: InputT
    ) -> StateT | None:
        move = before, what
        if move not in table.moves:
            raise self._illegal(table.title, entity, before, what)
        after = table.moves[move]
        self._moves.append((entity, before, what, after or "deleted"))
        return after

    def _restored(self, table: StateTable[StateT, InputT], entity: str, state: StateT) -> StateT:
        if state not in table.restored:
            raise self._illegal(table.title, entity, state, "RESTORE")
        return state

    def _illegal(self, title: str, entity: str, before: str, what: str) -> IllegalTransition:
        recent = "; ".join(self.of(entity)) or "no moves on record"
        return IllegalTransition(
            f"{title} {entity} is {before}, which does not allow {what}. Recent moves: {recent}",
            details={"entity": entity, "state": before, "input": what},
        )


def resize_state(slot: Slot) -> ResizeState:
    """Returns the state of a slot's resizes."""
    if slot.ordered is None:
        return ResizeState.NONE if slot.wanted is None else ResizeState.WAITING
    return ResizeState.ORDERED if slot.wanted is None else ResizeState.ORDERED_AND_WAITING
