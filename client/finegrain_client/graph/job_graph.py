"""Builds job graphs, to which operators and edges are added one by one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.values import (
    EdgeSpec,
    Exchange,
    GraphSpec,
    JobMode,
    JobOptions,
    OperatorSpec,
    Output,
    Pattern,
    ResourceSpec,
    word,
)

OPERATORS_MAX = 1_000
EDGES_MAX = 10_000


class JobGraph:
    """A job as a graph of operators.

    Args:
        name: name for people to read, 1 to 200 printable characters.
        mode: "streaming" or "batch".
        options: options of the whole job.
    """

    def __init__(
        self,
        name: str,
        mode: JobMode | str = JobMode.STREAMING,
        *,
        options: JobOptions | None = None,
    ) -> None:
        self._empty = GraphSpec(name, word("mode", mode, JobMode), (), (), options or JobOptions())
        self._operators: dict[str, OperatorSpec] = {}
        self._edges: dict[str, EdgeSpec] = {}

    def operator(
        self,
        name: str,
        *,
        parallelism: int = 1,
        resources: ResourceSpec | None = None,
        program: Sequence[str] = (),
        slot_sharing_group: str = "",
        co_location_group: str = "",
        chaining: bool = True,
        uses_managed_memory: bool = False,
        uses_managed_on_heap_memory: bool = False,
        managed_memory_weight: int = 1,
        ports: int = 0,
        output: Output | str = Output.HOST,
        revocable: bool | None = None,
    ) -> OperatorSpec:
        """Adds an operator. `OperatorSpec` describes the arguments.

        Raises:
            InvalidArgument: an argument is wrong, or `resources` does not state CPU and task heap
                memory.
            GraphError: the graph already has an operator with this name, or too many operators.
        """
        operator = OperatorSpec(
            name=name,
            parallelism=parallelism,
            resources=resources,
            program=program,
            slot_sharing_group=slot_sharing_group,
            co_location_group=co_location_group,
            chaining=chaining,
            uses_managed_memory=uses_managed_memory,
            uses_managed_on_heap_memory=uses_managed_on_heap_memory,
            managed_memory_weight=managed_memory_weight,
            ports=ports,
            output=word(f"output of operator {name}", output, Output),
            revocable=revocable,
        )
        return self.add_operator(operator)

    def add_operator(self, operator: OperatorSpec) -> OperatorSpec:
        """Adds an operator that was made elsewhere.

        Raises:
            GraphError: the graph already has an operator with this name, or too many operators.
        """
        if operator.name in self._operators:
            raise GraphError(
                f"there are two operators named {operator.name}; give one of them another name",
                operators=[operator.name],
            )
        if len(self._operators) == OPERATORS_MAX:
            raise GraphError(
                f"operator {operator.name} is one too many; a job has at most {OPERATORS_MAX}"
                " operators; give operators a higher parallelism instead of adding equal ones"
            )
        self._operators[operator.name] = operator
        return operator

    def connect(
        self,
        producer: OperatorSpec | str,
        consumer: OperatorSpec | str,
        *,
        exchange: Exchange | str = Exchange.PIPELINED,
        pattern: Pattern | str = Pattern.FORWARD,
    ) -> EdgeSpec:
        """Adds an edge between two operators of this graph. An operator is given by its name, or as
        the value that `operator` returned.

        Args:
            producer: operator at which the edge begins.
            consumer: operator at which the edge ends.
            exchange: "pipelined" or "blocking".
            pattern: "forward" or "all-to-all".

        Raises:
            InvalidArgument: an argument is wrong.
            GraphError: an operator is unknown, the producer and the consumer are the same operator,
                or the graph already has this edge.
        """
        names = [each if isinstance(each, str) else each.name for each in (producer, consumer)]
        label = " -> ".join(names)
        for name in names:
            if name not in self._operators:
                close = difflib.get_close_matches(name, self._operators, n=1, cutoff=0.5)
                near = f", did you mean {close[0]}?" if close else ""
                raise GraphError(
                    f"edge {label}: there is no operator {name!r}{near}; add operators before the"
                    " edges between them",
                    operators=[name],
                )
        if names[0] == names[1]:
            raise GraphError(
                f"edge {label} begins and ends at the same operator; edges must not form circles;"
                " remove it",
                operators=names[:1],
            )
        edge = EdgeSpec(
            names[0],
            names[1],
            exchange=word(f"exchange of edge {label}", exchange, Exchange),
            pattern=word(f"pattern of edge {label}", pattern, Pattern),
        )
        if edge.name in self._edges:
            raise GraphError(
                f"there are two edges {edge.name}; remove one of them", operators=names
            )
        if len(self._edges) == EDGES_MAX:
            raise GraphError(f"edge {label} is one too many; a job has at most {EDGES_MAX} edges")
        self._edges[edge.name] = edge
        return edge

    @property
    def spec(self) -> GraphSpec:
        """The present state of the graph, as an immutable value."""
        empty = self._empty
        operators, edges = tuple(self._operators.values()), tuple(self._edges.values())
        return GraphSpec(empty.name, empty.mode, operators, edges, empty.options)

    def compile(self) -> Plan:
        """Returns the plan of the present graph.

        Raises:
            GraphError: the graph cannot be compiled. The message names the operators, and says what
                to change.
        """
        return compile_graph(self.spec)
