"""Decodes and checks the messages of job masters about operators of job graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id, check_text
from finegrain.topology import printable
from finegrain.v1 import task_executor_pb2
from finegrain.values.operators import ChainEdge, GraphPlace, OperatorTask, TaskOperator, TaskPeer
from task_executor.engine.managed_memory import OPERATORS_MAX, read_fraction

PEERS_MAX: Final = 4_000
PORTS_MAX: Final = 1_000  # maximum number of ports of one task
PORT_MAX: Final = 65_535
HOST_LENGTH_MAX: Final = 253
SUBTASKS_MAX: Final = 1_000_000
EDGES_MAX: Final = 1_000  # maximum number of edges of one chain
CHAIN_NAME_LENGTH_MAX: Final = 1_000


def operator_task_of(message: task_executor_pb2.OperatorTask) -> OperatorTask:
    """Decodes and checks the operators of a task.

    Raises:
        InvalidArgument: a field is invalid. The error names the path of the field.
    """
    where = "operator_task"
    if not 1 <= len(message.operators) <= OPERATORS_MAX:
        raise InvalidArgument(
            f"{where}.operators", f"{len(message.operators)} operators", f"1 to {OPERATORS_MAX}"
        )
    if not 1 <= message.parallelism <= SUBTASKS_MAX:
        raise InvalidArgument(f"{where}.parallelism", message.parallelism, f"1 to {SUBTASKS_MAX}")
    if not 0 <= message.subtask_index < message.parallelism:
        expected = f"0 to {message.parallelism - 1}, below the parallelism"
        raise InvalidArgument(f"{where}.subtask_index", message.subtask_index, expected)
    operators: dict[str, TaskOperator] = {}
    for at, each in enumerate(message.operators):
        name = check_id(f"{where}.operators[{at}].operator_id", each.operator_id)
        if name in operators:
            raise InvalidArgument(
                f"{where}.operators[{at}].operator_id", name, "each operator only once"
            )
        if each.fraction:
            read_fraction(f"{where}.operators[{at}].fraction", each.fraction)
        operators[name] = TaskOperator(name, each.fraction)
    return OperatorTask(
        operators=tuple(operators.values()),
        subtask_index=message.subtask_index,
        parallelism=message.parallelism,
        ports=_ports(message.ports, f"{where}.ports"),
        peers=peers_of(message.peers, f"{where}.peers"),
        place=_place(message.place, f"{where}.place") if message.HasField("place") else None,
    )


def peers_of(
    messages: Sequence[task_executor_pb2.TaskPeer], where: str = "peers"
) -> tuple[TaskPeer, ...]:
    """Decodes and checks the peers of a task.

    Args:
        messages: the peers as the job master sent them.
        where: the path of the field in the request, for errors.

    Raises:
        InvalidArgument: a field is invalid, or there are too many peers.
    """
    if len(messages) > PEERS_MAX:
        raise InvalidArgument(where, f"{len(messages)} peers", f"at most {PEERS_MAX}")
    peers = []
    for at, each in enumerate(messages):
        check_id(f"{where}[{at}].operator_id", each.operator_id)
        if not 0 <= each.subtask_index < SUBTASKS_MAX:
            expected = f"0 to {SUBTASKS_MAX - 1}"
            raise InvalidArgument(f"{where}[{at}].subtask_index", each.subtask_index, expected)
        if not 1 <= len(each.host) <= HOST_LENGTH_MAX or printable(each.host) != each.host:
            raise InvalidArgument(f"{where}[{at}].host", each.host, "a host name or address")
        ports = _ports(each.ports, f"{where}[{at}].ports")
        peers.append(TaskPeer(each.operator_id, each.subtask_index, each.host, ports))
    return tuple(peers)


def _place(message: task_executor_pb2.GraphPlace, where: str) -> GraphPlace:
    group = message.slot_sharing_group
    if len(message.edges) > EDGES_MAX:
        raise InvalidArgument(
            f"{where}.edges", f"{len(message.edges)} edges", f"at most {EDGES_MAX}"
        )
    if message.region < 0:
        raise InvalidArgument(f"{where}.region", message.region, "0 or more")
    edges = []
    for at, each in enumerate(message.edges):
        field = f"{where}.edges[{at}]"
        if not 1 <= each.parallelism <= SUBTASKS_MAX:
            raise InvalidArgument(f"{field}.parallelism", each.parallelism, f"1 to {SUBTASKS_MAX}")
        name = _chain_name(f"{field}.chain", each.chain)
        edges.append(ChainEdge(name, each.parallelism, each.is_input, each.is_blocking))
    return GraphPlace(
        chain=_chain_name(f"{where}.chain", message.chain),
        slot_sharing_group=group and check_id(f"{where}.slot_sharing_group", group),
        region=message.region,
        edges=tuple(edges),
    )


def _chain_name(where: str, name: str) -> str:
    return check_text(where, name, longest=CHAIN_NAME_LENGTH_MAX)


def _ports(ports: Sequence[int], where: str) -> tuple[int, ...]:
    if len(ports) > PORTS_MAX:
        raise InvalidArgument(where, f"{len(ports)} ports", f"at most {PORTS_MAX}")
    for port in ports:
        if not 1 <= port <= PORT_MAX:
            raise InvalidArgument(where, port, f"ports from 1 to {PORT_MAX}")
    return tuple(ports)
