"""Assigns operators to slot sharing groups, which determine the operators that share slots.

The compiler keeps every group that the user set, even if it spans regions. All other operators of a
streaming job are in the group "default". In a batch job, each region has a separate group
("region-2"). So memory is divided only among operators that can run together.
"""

from __future__ import annotations

import re

from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.regions import Regions
from finegrain_client.graph.values import GraphSpec, JobMode, OperatorSpec

DEFAULT_GROUP = "default"
_RESERVED = re.compile(r"region-\d+")


def assign_groups(graph: GraphSpec, regions: Regions) -> dict[str, str]:
    """Returns the slot sharing group of each operator.

    Raises:
        GraphError: a group has a name that the compiler uses, or a co-location group is not within
            one slot sharing group.
    """
    same = shares_one_group(graph)
    groups = {}
    for operator in graph.operators:
        chosen = operator.slot_sharing_group
        if _RESERVED.fullmatch(chosen):
            raise GraphError(
                f"slot_sharing_group of operator {operator.name} is {chosen!r}; names such as"
                " region-1 are reserved for default groups; choose another name",
                operators=[operator.name],
            )
        default = DEFAULT_GROUP if same else f"region-{regions.region_of[operator.name] + 1}"
        groups[operator.name] = chosen or default
    _check_co_location(graph, regions, groups)
    return groups


def shares_one_group(graph: GraphSpec) -> bool:
    """Returns True if operators without a group share one group.

    The options of the job can decide this. If they do not decide it, the operators of a streaming
    job share one group, and the operators of a batch job do not.
    """
    same = graph.options.all_vertices_in_same_slot_sharing_group_by_default
    return graph.mode is JobMode.STREAMING if same is None else same


def _check_co_location(graph: GraphSpec, regions: Regions, groups: dict[str, str]) -> None:
    first_of: dict[str, OperatorSpec] = {}
    for operator in graph.operators:
        if not (name := operator.co_location_group):
            continue
        first = first_of.setdefault(name, operator)
        pair = first.name, operator.name
        if groups[first.name] != groups[operator.name]:
            raise GraphError(
                f"operators {first.name} and {operator.name} are in co-location group {name}, but"
                f" in the slot sharing groups {groups[first.name]} and {groups[operator.name]}, so"
                " they never share a slot; set the same slot_sharing_group for both",
                operators=pair,
            )
        if graph.mode is JobMode.BATCH and (
            regions.region_of[first.name] != regions.region_of[operator.name]
        ):
            raise GraphError(
                f"operators {first.name} and {operator.name} are in co-location group {name}, but"
                " not in the same pipelined region, so they need not run at the same time; remove"
                " one of them from the group, or connect them by pipelined edges",
                operators=pair,
            )
