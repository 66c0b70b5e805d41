"""Draws a plan as SVG. Regions are boxes. Each box contains the chains of the region, in the color
of their group.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from finegrain_client.graph.drawing.labels import chain_text, edge_text, outer_edges, region_text
from finegrain_client.graph.drawing.layout import Box, Layout, lay_out
from finegrain_client.graph.plan import ChainPlan, EdgePlan, Plan
from finegrain_client.graph.values import Exchange

# The palette of Okabe and Ito: people with color blindness can distinguish its colors.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#F0E442", "#999999")
STYLE = (
    "text{font:12px sans-serif;fill:#222}.small{font-size:10px;fill:#555}"
    ".region{fill:#f6f6f6;stroke:#999}.chain{fill:#fff;stroke-width:2}"
    ".edge{fill:none;stroke:#444;stroke-width:1.5}.blocking{stroke-dasharray:5 4}"
)


def svg(plan: Plan) -> str:
    """Returns an SVG document. Dashed arrows are blocking edges."""
    layout = lay_out(
        plan,
        {each.name: max(map(len, _lines_of(each))) for each in plan.chains},
        {each.number: len(region_text(each)) for each in plan.regions},
    )
    return "\n".join(_document(plan, layout)) + "\n"


def _lines_of(chain: ChainPlan) -> tuple[str, str]:
    return chain_text(chain), f"group {chain.group}"


def _document(plan: Plan, layout: Layout) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width:.0f}"'
        f' height="{layout.height:.0f}" viewBox="0 0 {layout.width:.0f} {layout.height:.0f}">'
    )
    yield f"<title>{escape(plan.name)}</title>"
    yield f"<style>{STYLE}</style>"
    yield (
        '<defs><marker id="tip" markerWidth="9" markerHeight="9" refX="8" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#444"/></marker></defs>'
    )
    for region in plan.regions:
        box = layout.regions[region.number]
        yield _rectangle(box, 'class="region" rx="8"')
        yield _text(box.x + 12, box.y + 18, region_text(region))
    for edge, producer, consumer in outer_edges(plan):
        yield from _edge(edge, layout.chains[producer.name], layout.chains[consumer.name])
    colours = {each.name: COLOURS[at % len(COLOURS)] for at, each in enumerate(plan.groups)}
    for chain in plan.chains:
        box = layout.chains[chain.name]
        yield _rectangle(box, f'class="chain" rx="4" stroke="{colours[chain.group]}"')
        name, group = _lines_of(chain)
        yield _text(box.x + 12, box.y + 19, name)
        yield _text(box.x + 12, box.y + 34, group, "small")
    yield "</svg>"


def _edge(edge: EdgePlan, start: Box, end: Box) -> Iterator[str]:
    x1, y1 = start.x + start.width, start.y + start.height / 2
    x2, y2 = end.x, end.y + end.height / 2
    bend = max(40, (x2 - x1) / 2)
    kind = " blocking" if edge.exchange is Exchange.BLOCKING else ""
    yield (
        f'<path class="edge{kind}" marker-end="url(#tip)" d="M{x1:.0f},{y1:.0f}'
        f' C{x1 + bend:.0f},{y1:.0f} {x2 - bend:.0f},{y2:.0f} {x2:.0f},{y2:.0f}">'
        f"<title>{escape(edge.name)}: {edge_text(edge)}</title></path>"
    )
    middle = (x1 + x2) / 2 - len(str(edge.pattern)) * 2.5
    yield _text(middle, (y1 + y2) / 2 - 5, edge.pattern, "small")


def _rectangle(box: Box, attributes: str) -> str:
    return (
        f'<rect {attributes} x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}"'
        f' height="{box.height:.0f}"/>'
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<text{css} x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'
