"""The stored output of operators: who needs it, where it lies, and what of it is lost.

Only output for blocking edges is stored. It is complete when the region of its operator has
finished.
"""

from __future__ import annotations

from collections.abc import Mapping

from finegrain_client.graph.plan import EdgePlan, Plan
from finegrain_client.graph.values import Exchange, Output


class Outputs:
    """What is known of the stored output of a job's operators."""

    def __init__(self, plan: Plan) -> None:
        edges = [each for each in plan.edges if each.exchange is Exchange.BLOCKING]
        producers = {each.producer for each in edges}
        self._edge_named: dict[str, EdgePlan] = {each.name: each for each in edges}
        self._on_host = {
            operator.name
            for chain in plan.chains
            for operator in chain.operators
            if operator.output is Output.HOST and operator.name in producers
        }
        self._inputs: dict[int, set[str]] = {each.number: set() for each in plan.regions}
        for edge in edges:
            self._inputs[plan.chain_of[edge.consumer].region].add(edge.producer)
        self._chain_of = plan.chain_of
        self._hosts: dict[str, frozenset[str]] = {}
        self._lost: set[str] = set()

    def copy(self) -> Outputs:
        """Returns an independent copy."""
        copied = Outputs.__new__(Outputs)
        copied.__dict__ = dict(self.__dict__)
        copied._hosts, copied._lost = dict(self._hosts), set(self._lost)
        return copied

    @property
    def any_lost(self) -> bool:
        """Whether any output is lost, needed or not."""
        return bool(self._lost)

    @property
    def hosts(self) -> set[str]:
        """The hosts that have output of which nothing is lost yet."""
        return {
            host for name, hosts in self._hosts.items() if name not in self._lost for host in hosts
        }

    def stored(self, region: int, hosts: Mapping[str, frozenset[str]]) -> None:
        """A region has finished: its output is complete.

        Args:
            region: number of the region.
            hosts: hosts that the tasks of each of its chains ran on.
        """
        for name, chain in self._chain_of.items():
            if chain.region == region:
                self._lost.discard(name)
                if name in self._on_host:
                    self._hosts[name] = hosts[chain.name]

    def host_lost(self, host: str) -> None:
        """A host is lost, and with it all output that lies on it."""
        self._lost.update(name for name, hosts in self._hosts.items() if host in hosts)

    def missing(self, edge: str, region: int) -> bool:
        """A task of a region did not find the data of an edge.

        Returns whether this is an edge with stored output that the region reads. If so, the output
        counts as lost, wherever it lies.
        """
        found = self._edge_named.get(edge)
        if found is None or self._chain_of[found.consumer].region != region:
            return False
        self._lost.add(found.producer)
        return True

    def lost_input(self, region: int) -> set[int]:
        """Returns the regions whose lost output this region reads."""
        lost = self._inputs[region] & self._lost
        return {self._chain_of[each].region for each in lost}
