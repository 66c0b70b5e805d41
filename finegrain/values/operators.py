"""Describes operators of job graphs in tasks: the data that a task gets at its start, and the
quotas of operators.

docs/job-graphs.md describes these operators for job masters.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.values.states import QuotaEnforcement


@dataclass(frozen=True, slots=True)
class TaskOperator:
    """An operator in a slot.

    `fraction` is the operator's exact part of the slot's managed memory, such as "3/4"; empty: the
    operator gets no managed memory.
    """

    operator_id: str
    fraction: str = ""


@dataclass(frozen=True, slots=True)
class TaskPeer:
    """A task with which another task exchanges data, and the network ports on which this peer
    listens.
    """

    operator_id: str
    subtask_index: int
    host: str
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChainEdge:
    """An edge of a job graph, as the chain at one end of the edge knows it.

    Attributes:
        chain: the name of the other chain.
        parallelism: the number of subtasks of the other chain.
        is_input: True if data flows from the other chain to this chain.
        is_blocking: True if the consumer starts when the producer has ended.
    """

    chain: str
    parallelism: int
    is_input: bool
    is_blocking: bool


@dataclass(frozen=True, slots=True)
class GraphPlace:
    """The place of a chain in its job graph, for people who look at the job.

    Attributes:
        chain: the name of the chain, unique in the job.
        slot_sharing_group: the chain's slot sharing group; empty: not known.
        region: the number of the chain's pipelined region; 0: not known.
        edges: the edges between this chain and other chains.
    """

    chain: str
    slot_sharing_group: str = ""
    region: int = 0
    edges: tuple[ChainEdge, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorTask:
    """One subtask of a chain of operators."""

    operators: tuple[TaskOperator, ...]
    subtask_index: int = 0
    parallelism: int = 1
    ports: tuple[int, ...] = ()
    peers: tuple[TaskPeer, ...] = ()
    place: GraphPlace | None = None


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """An operator that runs in a task, with its quota of managed memory.

    `used_bytes` is 0 if it is not known. If a control group enforces the quota, `used_bytes` is the
    memory of the whole task. `limit_bytes` is the memory that the operator may use now: its quota
    minus lent memory plus borrowed memory. `revoked_bytes` is the memory that the operator must
    give back now.
    """

    operator_id: str
    fraction: str
    quota_bytes: int
    quota_pages: int
    used_bytes: int
    enforcement: QuotaEnforcement
    limit_bytes: int = 0
    revoked_bytes: int = 0
