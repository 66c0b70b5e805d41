"""Compiles a job graph into a plan: regions, groups, chains, slot profiles and fractions.

The steps are: check that either all operators have resources or none has, find regions, assign slot
sharing groups, chain operators, count network buffers, add up profiles, and spread subtasks over
slots. Each step has a separate module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from finegrain_client.graph.chains import Chains, find_chains, program_of
from finegrain_client.graph.connections import channels, input_buffers, subpartitions
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.groups import assign_groups
from finegrain_client.graph.plan import (
    ChainPlan,
    EdgePlan,
    GroupPlan,
    OperatorPlan,
    Plan,
    RegionPlan,
    RestartPolicy,
    SlotTimes,
)
from finegrain_client.graph.profiles import (
    ManagedShare,
    SlotProfile,
    check_all_or_none,
    default_profile,
    is_specified,
    managed_shares,
    memory_share,
    specified_profile,
)
from finegrain_client.graph.regions import Regions, find_regions
from finegrain_client.graph.spreading import Spread, spread_evenly
from finegrain_client.graph.values import GraphSpec, JobMode, OperatorSpec


def compile_graph(graph: GraphSpec) -> Plan:
    """Returns the plan of a job graph.

    Raises:
        GraphError: the graph has no operators, or cannot be compiled. The message says why.
    """
    if not graph.operators:
        raise GraphError(f"job {graph.name} has no operators; add one or more")
    check_all_or_none(graph.operators)
    regions = find_regions(graph)
    groups = assign_groups(graph, regions)
    _check_revocable(graph, regions, groups)
    chains = find_chains(graph, groups, _in_order(graph))
    return _Assembly(graph, regions, groups, chains).plan()


def _check_revocable(graph: GraphSpec, regions: Regions, groups: Mapping[str, str]) -> None:
    """Raises GraphError if only some operators of a slot sharing group, or of a pipelined region,
    are revocable.

    Operators of a group share slots, and the slots of a region are requested together as one gang.
    """
    first: dict[str, OperatorSpec] = {}
    for operator in graph.operators:
        number = regions.region_of[operator.name] + 1
        for where in f"slot sharing group {groups[operator.name]}", f"region {number}":
            other = first.setdefault(where, operator)
            if _is_revocable(graph, operator) != _is_revocable(graph, other):
                yes, no = sorted((operator, other), key=lambda each: not _is_revocable(graph, each))
                raise GraphError(
                    f"operator {yes.name} is revocable and operator {no.name} is not, but both are"
                    f" in {where}; make both revocable, or none"
                )


def _is_revocable(graph: GraphSpec, operator: OperatorSpec) -> bool:
    return graph.options.revocable if operator.revocable is None else operator.revocable


def _in_order(graph: GraphSpec) -> list[str]:
    """Returns the operators in graph order, with one exception: each operator comes after the
    operators from which it reads.
    """
    inputs: dict[str, list[str]] = {each.name: [] for each in graph.operators}
    for edge in graph.edges:
        inputs[edge.consumer].append(edge.producer)
    return list(TopologicalSorter(inputs).static_order())


@dataclass
class _Assembly:
    """Makes the plan from the results of the steps."""

    graph: GraphSpec
    regions: Regions
    groups: Mapping[str, str]
    chains: Chains

    def __post_init__(self) -> None:
        self.operators = {each.name: each for each in self.graph.operators}
        self.specified = is_specified(self.graph)
        self.members: dict[str, list[OperatorSpec]] = {}
        for operator in self.graph.operators:
            self.members.setdefault(self.groups[operator.name], []).append(operator)
        self.weights = {
            name: sum(each.managed_memory_weight for each in members)
            for name, members in self.members.items()
        }
        self.chains_of: dict[str, list[int]] = {name: [] for name in self.members}
        for at, names in enumerate(self.chains.members):
            self.chains_of[self.groups[names[0]]].append(at)

    def plan(self) -> Plan:
        edges = tuple(self._edges())
        buffers = self._network_buffers(edges)
        spreads = self._spreads()
        groups = [self._group(name, buffers, spreads) for name in self.members]
        profiles = {each.name: each.profile for each in groups}
        shares = {
            name: share
            for members in self.members.values()
            for name, share in managed_shares(members).items()
        }
        chains = tuple(
            self._chain(at, buffers[at], spreads[at], profiles, shares)
            for at in range(len(self.chains.members))
        )
        in_region: dict[int, list[ChainPlan]] = {}
        for chain in chains:
            in_region.setdefault(chain.region, []).append(chain)
        regions = tuple(self._region(number, each) for number, each in sorted(in_region.items()))
        options = self.graph.options
        return Plan(
            name=self.graph.name,
            mode=self.graph.mode,
            specified=self.specified,
            regions=regions,
            groups=tuple(groups),
            chains=chains,
            edges=edges,
            network_buffer_bytes=options.network_buffer_bytes,
            slots_needed=_slots_needed(self.graph.mode, groups, regions),
            restart=RestartPolicy(
                restarts_max=options.restarts_max, delay_s=options.restart_delay_s
            ),
            slot_times=SlotTimes(
                time_limit_s=options.time_limit_s,
                expected_run_time_s=options.expected_run_time_s,
            ),
        )

    def _edges(self) -> Iterable[EdgePlan]:
        for edge in self.graph.edges:
            obstacle = self.chains.obstacles.get(edge.name)
            ends = (
                edge.pattern,
                self.operators[edge.producer].parallelism,
                self.operators[edge.consumer].parallelism,
            )
            yield EdgePlan(
                producer=edge.producer,
                consumer=edge.consumer,
                exchange=edge.exchange,
                pattern=edge.pattern,
                chained=obstacle is None,
                obstacle=obstacle,
                channels=channels(*ends) if obstacle else 0,
                subpartitions=subpartitions(*ends) if obstacle else 0,
            )

    def _network_buffers(self, edges: Iterable[EdgePlan]) -> list[int]:
        """Returns the network buffers of one task of each chain."""
        buffers = [0] * len(self.chains.members)
        for edge in edges:
            if not edge.chained:
                buffers[self.chains.chain_of[edge.producer]] += edge.subpartitions
                buffers[self.chains.chain_of[edge.consumer]] += input_buffers(
                    edge.channels, self.graph.options
                )
        return buffers

    def _parallelism(self, chain: int) -> int:
        return self.operators[self.chains.members[chain][0]].parallelism

    def _spreads(self) -> dict[int, Spread]:
        """Returns the slots of each chain. Chains of a co-location group get the same slots."""
        spreads: dict[int, Spread] = {}
        for chains in self.chains_of.values():
            slots = max(map(self._parallelism, chains))
            clusters = self._co_located(chains)
            # Place larger chains first, so that smaller chains fill the gaps.
            clusters.sort(key=lambda each: -max(map(self._parallelism, each)))
            sizes = [max(map(self._parallelism, each)) for each in clusters]
            for cluster, spread in zip(clusters, spread_evenly(slots, sizes), strict=True):
                spreads |= dict.fromkeys(cluster, spread)
        return spreads

    def _co_located(self, chains: Iterable[int]) -> list[list[int]]:
        """Groups chains into clusters in which subtasks with the same index share a slot."""
        cluster_of: dict[str, list[int]] = {}
        clusters: list[list[int]] = []
        for chain in chains:
            names = self._co_location_groups(chain)
            joined = [cluster_of[name] for name in names if name in cluster_of]
            cluster = [chain]
            for other in {id(each): each for each in joined}.values():
                clusters.remove(other)
                cluster = other + cluster
            clusters.append(cluster)
            members = {name for each in cluster for name in self._co_location_groups(each)}
            cluster_of |= dict.fromkeys(members, cluster)
        return clusters

    def _co_location_groups(self, chain: int) -> list[str]:
        members = self.chains.members[chain]
        found = (self.operators[name].co_location_group for name in members)
        return list(dict.fromkeys(filter(None, found)))

    def _group(self, name: str, buffers: Sequence[int], spreads: Mapping[int, Spread]) -> GroupPlan:
        members, chains = self.members[name], self.chains_of[name]
        network_bytes = sum(buffers[at] for at in chains) * self.graph.options.network_buffer_bytes
        numbers = sorted({self.regions.region_of[each.name] + 1 for each in members})
        return GroupPlan(
            name=name,
            by_user=any(each.slot_sharing_group for each in members),
            slots=spreads[chains[0]].slots,
            profile=specified_profile(members, network_bytes, f"slot sharing group {name}")
            if self.specified
            else default_profile(members, self.graph.options),
            chains=tuple(_chain_name(self.chains.members[at]) for at in chains),
            regions=tuple(numbers),
            revocable=_is_revocable(self.graph, members[0]),
        )

    def _chain(
        self,
        at: int,
        buffers: int,
        spread: Spread,
        profiles: Mapping[str, SlotProfile],
        shares: Mapping[str, ManagedShare],
    ) -> ChainPlan:
        members = [self.operators[name] for name in self.chains.members[at]]
        group = self.groups[members[0].name]
        network_bytes = buffers * self.graph.options.network_buffer_bytes
        name = _chain_name(self.chains.members[at])
        profile = (
            specified_profile(members, network_bytes, f"task {name}") if self.specified else None
        )
        return ChainPlan(
            name=name,
            operators=tuple(
                OperatorPlan(
                    name=each.name,
                    managed=shares[each.name],
                    managed_memory_bytes=shares[each.name].quota_bytes(
                        profiles[group].managed_memory_bytes,
                        profiles[group].managed_on_heap_memory_bytes,
                    )
                    if self.specified
                    else None,
                    output=each.output,
                )
                for each in members
            ),
            parallelism=members[0].parallelism,
            region=self.regions.region_of[members[0].name] + 1,
            group=group,
            co_location_group=", ".join(self._co_location_groups(at)),
            program=program_of(self.graph, members[0]),
            ports=sum(each.ports for each in members),
            network_buffers=buffers,
            network_memory_bytes=network_bytes,
            profile=profile,
            spread=spread,
            memory_share=memory_share(members, profile, profiles[group], self.weights[group]),
        )

    def _region(self, number: int, chains: Sequence[ChainPlan]) -> RegionPlan:
        return RegionPlan(
            number=number,
            chains=tuple(each.name for each in chains),
            waits_for=tuple(sorted(each + 1 for each in self.regions.waits_for[number - 1])),
            slots=len(
                {
                    (each.group, each.spread.slot_of(index))
                    for each in chains
                    for index in range(each.parallelism)
                }
            ),
        )


def _chain_name(members: Iterable[str]) -> str:
    return "+".join(members)


def _slots_needed(mode: JobMode, groups: Iterable[GroupPlan], regions: Iterable[RegionPlan]) -> int:
    if mode is JobMode.STREAMING:
        return sum(each.slots for each in groups)
    return max(each.slots for each in regions)
