"""Draws a plan as a Mermaid flowchart. GitHub and many documentation tools can show it."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain_client.graph.drawing.labels import chain_text, edge_text, outer_edges, region_text
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.values import Exchange

ARROWS = {Exchange.PIPELINED: "-->", Exchange.BLOCKING: "-.->"}


def mermaid(plan: Plan) -> str:
    """Returns a flowchart with a subgraph for each region. Dotted arrows are blocking edges."""
    return "\n".join(["flowchart LR", *(f"    {line}" for line in _lines(plan))]) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    # Use numbers as ids: a name can be a keyword of Mermaid, such as "end".
    ids = {chain.name: f"c{at}" for at, chain in enumerate(plan.chains)}
    for region in plan.regions:
        yield f'subgraph r{region.number}["{region_text(region)}"]'
        for name in region.chains:
            chain = plan.chain_named[name]
            yield f'    {ids[name]}["{chain_text(chain)}<br>group {chain.group}"]'
        yield "end"
    for edge, producer, consumer in outer_edges(plan):
        arrow = ARROWS[edge.exchange]
        yield f'{ids[producer.name]} {arrow}|"{edge_text(edge)}"| {ids[consumer.name]}'
