"""Draws a plan as text, with a box for each region. Regions are in the order in which they run.

Example:

    +-- region 1, starts first, 4 slots
    |  read + map x4  (group region-1)
    |    ==> reduce  blocking, all-to-all  (region 2)
    +--
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain_client.graph.drawing.labels import chain_text, edge_text, outer_edges, region_text
from finegrain_client.graph.plan import ChainPlan, Plan, RegionPlan
from finegrain_client.graph.values import Exchange

ARROWS = {Exchange.PIPELINED: "-->", Exchange.BLOCKING: "==>"}


def picture(plan: Plan) -> str:
    """Returns the plan as text. `-->` is a pipelined edge, and `==>` is a blocking edge."""
    return "\n".join(line for region in plan.regions for line in _region(plan, region))


def _region(plan: Plan, region: RegionPlan) -> Iterator[str]:
    yield f"+-- {region_text(region)}"
    for name in region.chains:
        yield from (f"|  {line}" for line in _chain(plan, plan.chain_named[name]))
    yield "+--"


def _chain(plan: Plan, chain: ChainPlan) -> Iterator[str]:
    yield f"{chain_text(chain)}  (group {chain.group})"
    for edge, producer, consumer in outer_edges(plan):
        if producer is chain:
            # In a chain of several operators, the line also names the producer.
            start = f"{edge.producer} " if len(chain.operators) > 1 else ""
            elsewhere = f"  (region {consumer.region})" if consumer.region != chain.region else ""
            arrow = ARROWS[edge.exchange]
            yield f"  {start}{arrow} {edge.consumer}  {edge_text(edge)}{elsewhere}"
