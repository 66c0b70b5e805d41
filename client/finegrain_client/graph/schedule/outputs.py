"""Keeps the state of the stored output of operators: the regions that read it, its hosts, and lost
output.

Only output for blocking edges is stored. An operator's output is complete when its region has
finished.
"""

from __future__ import annotations

from collections.abc import Mapping

from finegrain_client.graph.plan import EdgePlan, Plan
from finegrain_client.graph.values import Exchange, Output


class Outputs:
    """The known state of the stored output of a job's operators."""

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
        """True if some output is lost. Output that no region needs any more also counts."""
        return bool(self._lost)

    @property
    def hosts(self) -> set[str]:
        """The hosts of output that is still complete."""
        return {
            host for name, hosts in self._hosts.items() if name not in self._lost for host in hosts
        }

    def stored(self, region: int, hosts: Mapping[str, frozenset[str]]) -> None:
        """Records that a region has finished. Its output is then complete.

        Args:
            region: number of the region.
            hosts: for each chain of the region, the hosts on which its tasks ran.
        """
        for name, chain in self._chain_of.items():
            if chain.region == region:
                self._lost.discard(name)
                if name in self._on_host:
                    self._hosts[name] = hosts[chain.name]

    def host_lost(self, host: str) -> None:
        """Records that a host is lost, together with all output that is stored on the host."""
        self._lost.update(name for name, hosts in self._hosts.items() if host in hosts)

    def missing(self, edge: str, region: int) -> bool:
        """Records that a task of a region did not find the data of an edge.

        Returns True if the edge has stored output that the region reads. The output then counts as
        lost, even if it is durable.
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
