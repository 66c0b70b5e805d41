"""Finds operator chains: the operators that run together in one task.

Two operators that an edge connects are chained, unless there is an `Obstacle`. A task is one
subtask of a chain. A chain is a tree: each of its operators except the first has exactly one input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from finegrain_client.graph.values import EdgeSpec, Exchange, GraphSpec, OperatorSpec, Pattern


class Obstacle(StrEnum):
    """The reason why the two operators of an edge are not chained.

    If there are several obstacles, the edge has the first of these obstacles in the order below.
    """

    BLOCKING = "blocking"  # the operators do not run at the same time
    ALL_TO_ALL = "all-to-all"  # a subtask needs the output of several subtasks
    PARALLELISM = "parallelism"  # the operators have different numbers of subtasks
    INPUTS = "inputs"  # the consumer also has other inputs
    SWITCHED_OFF = "switched-off"  # chaining is off for the job or for one of the operators
    PROGRAM = "program"  # the operators have different programs, but a task runs only one
    GROUP = "group"  # the slot sharing groups differ, and there is no other obstacle


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of a graph.

    Attributes:
        members: operators of each chain, in order along the edges.
        chain_of: index of each operator's chain in `members`.
        obstacles: the obstacle of each edge that is not within a chain.
    """

    members: tuple[tuple[str, ...], ...]
    chain_of: Mapping[str, int]
    obstacles: Mapping[str, Obstacle]


def program_of(graph: GraphSpec, operator: OperatorSpec) -> tuple[str, ...]:
    """Returns the operator's program, or the program of the job if the operator has none. The
    result is empty if the job has no program either.
    """
    return tuple(operator.program or graph.options.program)


def find_chains(graph: GraphSpec, groups: Mapping[str, str], order: Sequence[str]) -> Chains:
    """Returns the chains of a graph.

    Args:
        graph: the graph.
        groups: slot sharing group of each operator.
        order: all operators, each after the operators from which it gets input.
    """
    operators = {each.name: each for each in graph.operators}
    inputs: dict[str, list[EdgeSpec]] = {name: [] for name in operators}
    for edge in graph.edges:
        inputs[edge.consumer].append(edge)
    obstacles: dict[str, Obstacle] = {}
    members: list[list[str]] = []
    chain_of: dict[str, int] = {}
    for name in order:
        chained_to = None
        for edge in inputs[name]:
            obstacle = _obstacle(graph, operators, edge, len(inputs[name]), groups)
            if obstacle is None:
                chained_to = edge.producer
            else:
                obstacles[edge.name] = obstacle
        if chained_to is None:
            chain_of[name] = len(members)
            members.append([name])
        else:
            chain_of[name] = chain_of[chained_to]
            members[chain_of[name]].append(name)
    return Chains(tuple(map(tuple, members)), chain_of, obstacles)


def _obstacle(
    graph: GraphSpec,
    operators: Mapping[str, OperatorSpec],
    edge: EdgeSpec,
    consumer_inputs: int,
    groups: Mapping[str, str],
) -> Obstacle | None:
    producer, consumer = operators[edge.producer], operators[edge.consumer]
    if edge.exchange is Exchange.BLOCKING:
        return Obstacle.BLOCKING
    if edge.pattern is Pattern.ALL_TO_ALL:
        return Obstacle.ALL_TO_ALL
    if producer.parallelism != consumer.parallelism:
        return Obstacle.PARALLELISM
    if consumer_inputs > 1:
        return Obstacle.INPUTS
    if not (graph.options.chaining and producer.chaining and consumer.chaining):
        return Obstacle.SWITCHED_OFF
    if program_of(graph, producer) != program_of(graph, consumer):
        return Obstacle.PROGRAM
    if groups[producer.name] != groups[consumer.name]:
        return Obstacle.GROUP
    return None
