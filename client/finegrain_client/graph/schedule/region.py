"""Keeps what changes about one region while its job runs: the state, the tasks, and the number of
restarts.
"""

from __future__ import annotations

from copy import copy
from enum import StrEnum

from finegrain.errors import IllegalTransition
from finegrain_client.graph.plan import ChainPlan, Plan, RegionPlan
from finegrain_client.graph.schedule.slots import SlotPlace, SlotRequest, TaskId


class RegionState(StrEnum):
    """State of a region."""

    # the region waits for input, or for a slot that another region has requested
    WAITING = "WAITING"
    REQUESTING = "REQUESTING"  # the input is complete, and the slots are requested
    RUNNING = "RUNNING"  # all tasks were deployed
    # the tasks are being ended, because the region must run again or the job ends
    CANCELLING = "CANCELLING"
    DELAYED = "DELAYED"  # the region has failed; it keeps its slots until it is deployed again
    FINISHED = "FINISHED"  # all tasks ended with success


MOVES: frozenset[tuple[RegionState, RegionState]] = frozenset(
    {
        (RegionState.WAITING, RegionState.REQUESTING),
        (RegionState.WAITING, RegionState.RUNNING),
        (RegionState.REQUESTING, RegionState.RUNNING),
        (RegionState.REQUESTING, RegionState.WAITING),
        (RegionState.RUNNING, RegionState.FINISHED),
        (RegionState.RUNNING, RegionState.CANCELLING),
        (RegionState.CANCELLING, RegionState.DELAYED),
        (RegionState.CANCELLING, RegionState.WAITING),
        (RegionState.DELAYED, RegionState.WAITING),
        (RegionState.FINISHED, RegionState.WAITING),
    }
)
"""All allowed changes of state. docs/job-graphs.md shows them as a diagram."""

OCCUPYING = frozenset((RegionState.RUNNING, RegionState.CANCELLING, RegionState.DELAYED))
"""States in which a region occupies its slots. In any other state, the region occupies no slot."""


class RegionRun:
    """The state of one region.

    Attributes:
        plan: the region in the job's plan.
        places: the places of its slots.
        attempt: number of times that its tasks were deployed.
        failures: number of restarts after failures of its tasks.
        losses: number of restarts after slots, hosts or output were lost.
        delayed_restart: True if a delay follows when the tasks of the region have ended.
        running: places of its tasks that have not ended, by task.
        hosts: for each chain, the hosts on which its tasks of the latest attempt run or ran.
        request: the outstanding request of the region for slots; None if there is no request.
        message: its last failure, as a text for people.
    """

    def __init__(self, plan: Plan, region: RegionPlan) -> None:
        self.plan = region
        self.chains: tuple[ChainPlan, ...] = tuple(plan.chain_named[each] for each in region.chains)
        self.places = frozenset(
            SlotPlace(chain.group, chain.spread.slot_of(index))
            for chain in self.chains
            for index in range(chain.parallelism)
        )
        self.state = RegionState.WAITING
        self.attempt = 0
        self.failures = 0
        self.losses = 0
        self.delayed_restart = False
        self.running: dict[TaskId, SlotPlace] = {}
        self.hosts: dict[str, frozenset[str]] = {}
        self.request: SlotRequest | None = None
        self.message = ""

    @property
    def occupies_slots(self) -> bool:
        """True if the region occupies its slots."""
        return self.state in OCCUPYING

    def move(self, state: RegionState) -> None:
        """Changes the state.

        Raises:
            IllegalTransition: `MOVES` does not list this change.
        """
        if (self.state, state) not in MOVES:
            raise IllegalTransition(
                f"region {self.plan.number} cannot move from {self.state} to {state}"
                f" (attempt {self.attempt}, last failure: {self.message or 'none'})"
            )
        self.state = state

    def asks_by(self, request: int) -> bool:
        """Returns True if this request is the outstanding request of the region."""
        return self.request is not None and self.request.number == request

    def copy(self) -> RegionRun:
        """Returns an independent copy."""
        copied = copy(self)
        copied.running, copied.hosts = dict(self.running), dict(self.hosts)
        return copied

    def next_tasks(self) -> dict[TaskId, SlotPlace]:
        """Returns the tasks of the next attempt with their places."""
        return {
            TaskId(chain.name, index, self.attempt + 1): SlotPlace(
                chain.group, chain.spread.slot_of(index)
            )
            for chain in self.chains
            for index in range(chain.parallelism)
        }
