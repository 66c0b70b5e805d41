"""Defines the plan of a job, which the compiler makes from a job graph. A plan never changes.

Regions, groups and chains refer to each other by name or number. Regions are numbered from 1, in an
order in which they can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from finegrain_client.graph.chains import Obstacle
from finegrain_client.graph.connections import producers_of
from finegrain_client.graph.profiles import ManagedShare, SlotProfile
from finegrain_client.graph.spreading import Spread
from finegrain_client.graph.values import Exchange, JobMode, Output, Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPlan:
    """One operator within its chain.

    Attributes:
        managed: the fractions of its slot's managed memory that the operator gets.
        managed_memory_bytes: the operator's quota; None if the slot is a default slot, whose size
            is known only when it is granted.
        output: where the operator's output for blocking edges is stored.
    """

    name: str
    managed: ManagedShare
    managed_memory_bytes: int | None
    output: Output


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """Operators that run in one task, once for each subtask index.

    Attributes:
        name: names of its operators, joined by "+".
        operators: its operators, sorted along the edges.
        parallelism: number of tasks.
        region: number of its pipelined region.
        group: name of its slot sharing group.
        co_location_group: name of its co-location group; empty if the chain is in no such group.
        program: program and arguments of its tasks; empty if no program was given.
        ports: network ports of each task.
        network_buffers: network buffers of each task.
        network_memory_bytes: network memory of each task.
        profile: resources of one task; None if its operators have no resources.
        spread: the slot of the group in which each task runs.
        memory_share: fraction of the slot's memory that is the memory limit of each task. The
            fraction is 0 if no operator has its own program. In this case only the slot's limit
            applies.
    """

    name: str
    operators: tuple[OperatorPlan, ...]
    parallelism: int
    region: int
    group: str
    co_location_group: str
    program: tuple[str, ...]
    ports: int
    network_buffers: int
    network_memory_bytes: int
    profile: SlotProfile | None
    spread: Spread
    memory_share: Fraction = Fraction(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePlan:
    """One edge of the graph.

    Attributes:
        chained: True if both operators are in the same task.
        obstacle: the reason why the operators are not chained; None if they are chained.
        channels: largest number of input channels of a task of the consumer; 0 if chained.
        subpartitions: largest number of subpartitions of a task of the producer; 0 if the operators
            are chained.
    """

    producer: str
    consumer: str
    exchange: Exchange
    pattern: Pattern
    chained: bool
    obstacle: Obstacle | None
    channels: int
    subpartitions: int

    @property
    def name(self) -> str:
        """The name of the edge for people: "source -> map"."""
        return f"{self.producer} -> {self.consumer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """A pipelined region: chains that start together.

    Attributes:
        number: number of the region, beginning with 1.
        chains: names of its chains.
        waits_for: numbers of the regions that must end first.
        slots: number of slots that the region needs.
    """

    number: int
    chains: tuple[str, ...]
    waits_for: tuple[int, ...]
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A slot sharing group.

    Attributes:
        by_user: True if the user named the group.
        slots: number of the group's slots, which is the highest parallelism of its chains.
        profile: resources of each of its slots.
        chains: names of its chains.
        regions: numbers of the regions that have chains in the group.
        revocable: True if the resource manager may take its slots back.
    """

    name: str
    by_user: bool
    slots: int
    profile: SlotProfile
    chains: tuple[str, ...]
    regions: tuple[int, ...]
    revocable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """The rules by which failed regions are restarted.

    Attributes:
        restarts_max: maximum number of restarts of one region after failures of its tasks.
        delay_s: delay before the first restart of a region. The delay doubles with each further
            restart.
    """

    restarts_max: int
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTimes:
    """The time limit and the expected run time of each slot of a job, in seconds. None means that
    there is no limit, or that the run time is not known.
    """

    time_limit_s: float | None = None
    expected_run_time_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one job.

    Attributes:
        specified: True if all operators have resources. False if no operator has resources.
        network_buffer_bytes: size of one network buffer.
        slots_needed: the smallest number of slots with which the job can run. In a batch job,
            regions can run one after the other. In a streaming job, all regions run at the same
            time.
    """

    name: str
    mode: JobMode
    specified: bool
    regions: tuple[RegionPlan, ...]
    groups: tuple[GroupPlan, ...]
    chains: tuple[ChainPlan, ...]
    edges: tuple[EdgePlan, ...]
    network_buffer_bytes: int
    slots_needed: int
    restart: RestartPolicy
    slot_times: SlotTimes = SlotTimes()

    @cached_property
    def group_of(self) -> Mapping[str, GroupPlan]:
        """Groups by name."""
        return {each.name: each for each in self.groups}

    @cached_property
    def chain_named(self) -> Mapping[str, ChainPlan]:
        """Chains by name."""
        return {each.name: each for each in self.chains}

    @cached_property
    def chain_of(self) -> Mapping[str, ChainPlan]:
        """Chains by the name of each of their operators."""
        return {operator.name: chain for chain in self.chains for operator in chain.operators}

    def with_revocable_slots(self) -> Plan:
        """Returns the same plan, but the resource manager may take all slots back."""
        return replace(self, groups=tuple(replace(each, revocable=True) for each in self.groups))

    @property
    def broken_chains(self) -> tuple[EdgePlan, ...]:
        """Edges whose operators are not chained only because they are in different groups."""
        return tuple(each for each in self.edges if each.obstacle is Obstacle.GROUP)

    @property
    def tasks(self) -> int:
        """Number of tasks of the job."""
        return sum(each.parallelism for each in self.chains)

    def producers(self, edge: EdgePlan, index: int) -> range:
        """Returns the indexes of the producer subtasks from which consumer subtask `index`
        reads.
        """
        producer, consumer = self.chain_of[edge.producer], self.chain_of[edge.consumer]
        return producers_of(edge.pattern, index, producer.parallelism, consumer.parallelism)
