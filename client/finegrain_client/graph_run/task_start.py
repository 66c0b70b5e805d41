"""Builds the submission of one task of a plan, and the event for the task's end.

The executor passes operators, quotas and pipelined peers to the task as FINEGRAIN_TASK. The runner
adds FINEGRAIN_EDGES: the edges of the task, and the hosts that have the task's input from blocking
edges.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from finegrain.resources import MEMORY_GRAIN_BYTES
from finegrain.v1 import task_executor_pb2 as te
from finegrain_client.graph.plan import (
    ChainPlan,
    EdgePlan,
    GroupPlan,
    OperatorPlan,
    Plan,
    SlotTimes,
)
from finegrain_client.graph.profiles import SlotProfile
from finegrain_client.graph.schedule import Event, TaskEnded, TaskFailed, TaskId
from finegrain_client.graph.values import Exchange
from finegrain_client.graph_run.job_state import JobState
from finegrain_client.graph_run.spec import GraphRunSpec
from finegrain_client.slot.slot import Slot
from finegrain_client.slot.task import TaskOptions
from finegrain_client.specs import SlotSpec
from finegrain_client.types.status import OutputChunk, StreamName, TaskResult

TAIL_BYTES = 4_000
LINES_SHOWN = 5
EDGES_MAX, CHAIN_LABEL_LENGTH_MAX = 200, 200
"""Limits of a place in the graph. They are well below the limits of executors, because a submission
must not become too large.
"""
_INPUT_MISSING = re.compile(r"input missing: (\S+ -> \S+)")


class OutputTail:
    """Keeps the last part of the output of one task."""

    def __init__(self) -> None:
        self._tails: dict[StreamName, bytes] = {}

    def take(self, chunk: OutputChunk) -> None:
        """Appends a chunk."""
        tail = self._tails.get(chunk.stream, b"") + chunk.data
        self._tails[chunk.stream] = tail[-TAIL_BYTES:]

    def lines(self, stream: StreamName) -> list[str]:
        """Returns the last lines of a stream that are not empty."""
        text = self._tails.get(stream, b"").decode("utf-8", errors="replace")
        return [each.rstrip() for each in text.splitlines() if each.strip()]


def slot_spec(group: GroupPlan, times: SlotTimes, allocation_id: str) -> SlotSpec:
    """Returns the request for a slot of a group."""
    profile = group.profile
    spec = SlotSpec(
        allocation_id=allocation_id,
        revocable=group.revocable,
        time_limit_s=times.time_limit_s,
        expected_run_time_s=times.expected_run_time_s,
    )
    if profile.is_default:
        return spec
    return replace(
        spec,
        cpu_milli=profile.cpu_milli,
        memory_bytes=profile.task_heap_memory_bytes,
        task_off_heap_memory_bytes=profile.task_off_heap_memory_bytes,
        managed_memory_bytes=profile.managed_memory_bytes,
        network_memory_bytes=profile.network_memory_bytes,
        extended=dict(profile.extended),
        devices=dict(profile.devices),
        ports=profile.ports,
    )


def slot_prefix(run_id: str, job_number: str) -> str:
    """Returns the beginning of all allocation ids of a job. The rest of an id is "-" and the slot
    number.
    """
    return f"{run_id}-{job_number}"


def task_id_of(run_id: str, task: TaskId) -> str:
    """Returns the id of a task. All runners of the job use the same id."""
    name = f"{run_id}/{task.chain}/{task.subtask}/{task.attempt}"
    return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def task_options(
    spec: GraphRunSpec,
    state: JobState,
    task: TaskId,
    *,
    addresses: Mapping[str, str],
    slot: Slot,
    slot_ports: Callable[[int], Sequence[int]],
    tail: OutputTail,
) -> TaskOptions:
    """Returns the options with which a task is submitted.

    Args:
        spec: the specification of the run.
        state: the state of the job.
        task: the task.
        addresses: addresses of executors, by id.
        slot: the slot in which the task runs.
        slot_ports: a function that returns the network ports of the job's slot with a given number.
        tail: the object that receives the output of the task.
    """
    chain = spec.plan.chain_named[task.chain]
    profile = spec.plan.group_of[chain.group].profile
    edges = edges_json(spec.plan, state, task, addresses)
    return TaskOptions(
        argv=chain.program,
        env={**spec.env, "FINEGRAIN_EDGES": json.dumps(edges, separators=(",", ":"))},
        cwd=spec.cwd,
        user=spec.user,
        timeout_s=None,
        stdin=None,
        output=tail.take,
        output_limit_bytes=0,
        memory_limit_bytes=memory_limit(chain, profile, slot.memory_bytes),
        operator_task=te.OperatorTask(
            operators=[
                te.TaskOperator(
                    operator_id=each.name,
                    fraction=_fraction(each, profile, slot),
                )
                for each in chain.operators
            ],
            subtask_index=task.subtask,
            parallelism=chain.parallelism,
            ports=_ports(spec.plan, chain, slot.ports),
            peers=_peers(
                spec.plan,
                state,
                chain,
                task.subtask,
                addresses=addresses,
                slot_ports=slot_ports,
            ),
            place=graph_place(spec.plan, chain),
        ),
    )


def graph_place(plan: Plan, chain: ChainPlan) -> te.GraphPlace:
    """Returns the place of a chain in its graph. It has at most `EDGES_MAX` edges."""
    edges = [
        te.ChainEdge(
            chain=chain_label(other),
            parallelism=other.parallelism,
            is_input=is_input,
            is_blocking=edge.exchange is Exchange.BLOCKING,
        )
        for is_input in (True, False)
        for edge in _edges(plan, chain, inputs=is_input)
        for other in (plan.chain_of[edge.producer if is_input else edge.consumer],)
    ]
    return te.GraphPlace(
        chain=chain_label(chain),
        slot_sharing_group=chain.group,
        region=chain.region,
        edges=edges[:EDGES_MAX],
    )


def chain_label(chain: ChainPlan) -> str:
    """Returns the name of a chain, which is shortened if the chain has many operators. It is unique
    in the job, because an operator is in one chain only.
    """
    if len(chain.name) <= CHAIN_LABEL_LENGTH_MAX:
        return chain.name
    return f"{chain.operators[0].name} and {len(chain.operators) - 1} more"


def end_of_task(task: TaskId, result: TaskResult, tail: OutputTail) -> Event:
    """Returns the event for the end of a task."""
    if result.ok:
        return TaskEnded(task)
    errors = tail.lines("stderr")
    missing = next(
        (found[1] for each in reversed(errors) if (found := _INPUT_MISSING.fullmatch(each))), ""
    )
    shown = (errors or tail.lines("stdout"))[-LINES_SHOWN:]
    return TaskFailed(task, "\n".join([f"it {result.how}", *shown]), missing)


def edges_json(
    plan: Plan, state: JobState, task: TaskId, addresses: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the content of FINEGRAIN_EDGES."""
    chain = plan.chain_named[task.chain]
    return {
        "job": plan.name,
        "region": chain.region,
        "chain": chain.name,
        "attempt": task.attempt,
        "inputs": [
            {
                **_edge_json(edge, edge.producer),
                "tasks": [
                    _task_json(plan.chain_of[edge.producer], subtask, state, addresses)
                    for subtask in plan.producers(edge, task.subtask)
                ],
            }
            for edge in _edges(plan, chain, inputs=True)
        ],
        "outputs": [
            {**_edge_json(edge, edge.consumer), "subtasks": _consumers(plan, edge, task.subtask)}
            for edge in _edges(plan, chain, inputs=False)
        ],
    }


def _edge_json(edge: EdgePlan, other: str) -> dict[str, Any]:
    return {
        "edge": edge.name,
        "operator": other,
        "exchange": str(edge.exchange),
        "pattern": str(edge.pattern),
    }


def _task_json(
    chain: ChainPlan, subtask: int, state: JobState, addresses: Mapping[str, str]
) -> dict[str, Any]:
    executor_id = state.host_of_task(chain.name, subtask)
    task = state.latest.get((chain.name, subtask))
    return {
        "subtask": subtask,
        "attempt": task.attempt if task is not None else 0,
        "executor_id": executor_id,
        "host": _host(addresses.get(executor_id, "")),
    }


def _edges(plan: Plan, chain: ChainPlan, *, inputs: bool) -> list[EdgePlan]:
    """Returns the edges of a chain to or from other tasks."""
    names = {each.name for each in chain.operators}
    return [
        each
        for each in plan.edges
        if not each.chained and (each.consumer if inputs else each.producer) in names
    ]


def _consumers(plan: Plan, edge: EdgePlan, subtask: int) -> list[int]:
    parallelism = plan.chain_of[edge.consumer].parallelism
    return [each for each in range(parallelism) if subtask in plan.producers(edge, each)]


def _ports(plan: Plan, chain: ChainPlan, ports: Sequence[int]) -> Sequence[int]:
    """Returns the ports of a slot that the task of a chain gets.

    The slot's ports are divided among the chains of its group in the order of the plan. So the
    ports of every task and of its peers follow from the plan.
    """
    group = [plan.chain_named[each] for each in plan.group_of[chain.group].chains]
    first = sum(each.ports for each in group[: group.index(chain)])
    return ports[first : first + chain.ports]


def _peers(
    plan: Plan,
    state: JobState,
    chain: ChainPlan,
    subtask: int,
    *,
    addresses: Mapping[str, str],
    slot_ports: Callable[[int], Sequence[int]],
) -> list[te.TaskPeer]:
    """Returns the tasks at the other ends of pipelined edges."""
    ends = [
        (edge, edge.producer, list(plan.producers(edge, subtask)))
        for edge in _edges(plan, chain, inputs=True)
    ]
    ends += [
        (edge, edge.consumer, _consumers(plan, edge, subtask))
        for edge in _edges(plan, chain, inputs=False)
    ]
    peers = []
    for edge, operator, subtasks in ends:
        other = plan.chain_of[operator]
        for each in subtasks if edge.exchange is Exchange.PIPELINED else ():
            executor_id = state.host_of_task(other.name, each)
            number = state.slot_of(other.name, each)
            ports = slot_ports(number) if other.ports and number is not None else ()
            peers.append(
                te.TaskPeer(
                    operator_id=operator,
                    subtask_index=each,
                    host=_host(addresses.get(executor_id, "")),
                    ports=_ports(plan, other, ports),
                )
            )
    return peers


def _host(address: str) -> str:
    """Returns the host of "host:port"."""
    return address.rpartition(":")[0].strip("[]")


def memory_limit(chain: ChainPlan, profile: SlotProfile, slot_bytes: int) -> int:
    """Returns the memory limit of a task within its slot, in bytes. The result is 0 if only the
    slot's limit applies.

    Args:
        chain: the chain of the task.
        profile: the profile of its group.
        slot_bytes: the memory of the slot.
    """
    if profile.is_default:
        return int(chain.memory_share * slot_bytes) // MEMORY_GRAIN_BYTES * MEMORY_GRAIN_BYTES
    # Round up the limit in the same way as the memory of slots, so that a task never has less
    # memory than its resources.
    wanted = int(chain.memory_share * profile.memory_bytes)
    return min(-(-wanted // MEMORY_GRAIN_BYTES) * MEMORY_GRAIN_BYTES, slot_bytes)


def _fraction(operator: OperatorPlan, profile: SlotProfile, slot: Slot) -> str:
    """Returns the operator's fraction of its slot's managed memory as text. The text is empty if
    the operator gets no managed memory.
    """
    managed_bytes = slot.profile.managed_memory_bytes
    if not managed_bytes:
        return ""  # the slot has no managed memory
    part = Fraction(1)
    if profile.is_default:
        on_heap = Fraction(profile.default_managed_on_heap_memory_percent, 100)
        # If the job wants less managed memory than the default slot has, reduce the fraction.
        wanted = Fraction(profile.default_managed_memory_percent, 100) * slot.memory_bytes
        part = min(part, wanted / managed_bytes)
    else:
        on_heap = Fraction(profile.managed_on_heap_memory_bytes, profile.managed_memory_bytes)
    share = operator.managed.on_heap * on_heap + operator.managed.off_heap * (1 - on_heap)
    return str(share * part) if share else ""
