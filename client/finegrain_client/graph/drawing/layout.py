"""Places the chains of a plan on a plane: a column for each step along the edges.

Regions are boxes. A region is to the right of all regions for which it waits. Within a region, a
chain is to the right of the chains from which it gets input. All sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TypeVar

from finegrain_client.graph.drawing.labels import outer_edges
from finegrain_client.graph.plan import Plan, RegionPlan

Node = TypeVar("Node", int, str)

CHAIN_HEIGHT = 44
CHARACTER_WIDTH = 7.5
COLUMN_GAP, ROW_GAP = 90, 18
BOX_MARGIN, BOX_HEADING = 14, 24
BOX_GAP_X, BOX_GAP_Y = 90, 24
EDGE = 12


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    def moved(self, x: float, y: float) -> Box:
        """Returns a copy of this box, shifted by `x` and `y`."""
        return Box(self.x + x, self.y + y, self.width, self.height)


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions and sizes of all boxes of a picture.

    Attributes:
        width: width of the picture.
        height: height of the picture.
        regions: the box of each region, by number.
        chains: the box of each chain. The key is the name of the chain.
    """

    width: float
    height: float
    regions: Mapping[int, Box]
    chains: Mapping[str, Box]


def lay_out(plan: Plan, widths: Mapping[str, int], headings: Mapping[int, int]) -> Layout:
    """Returns the layout of a plan.

    Args:
        plan: the plan.
        widths: number of characters of the longest line in each chain's box.
        headings: number of characters of each region's heading.
    """
    regions: dict[int, Box] = {}
    chains: dict[str, Box] = {}
    depth = _depths(
        {each.number: each.waits_for for each in plan.regions},
        [each.number for each in plan.regions],
    )
    x = float(EDGE)
    for column in range(max(depth.values()) + 1):
        y, widest = float(EDGE), 0.0
        for region in plan.regions:
            if depth[region.number] != column:
                continue
            inner, width, height = _inside(plan, region, widths)
            width = max(width, headings[region.number] * CHARACTER_WIDTH + 2 * BOX_MARGIN)
            regions[region.number] = Box(x, y, width, height)
            chains |= {name: box.moved(x, y) for name, box in inner.items()}
            y += height + BOX_GAP_Y
            widest = max(widest, width)
        x += widest + BOX_GAP_X
    return Layout(
        width=max(each.x + each.width for each in regions.values()) + EDGE,
        height=max(each.y + each.height for each in regions.values()) + EDGE,
        regions=regions,
        chains=chains,
    )


def _inside(
    plan: Plan, region: RegionPlan, widths: Mapping[str, int]
) -> tuple[dict[str, Box], float, float]:
    """Returns the boxes of a region's chains relative to the region's corner, and the region's
    width and height.
    """
    inputs: dict[str, set[str]] = {name: set() for name in region.chains}
    for _, producer, consumer in outer_edges(plan):
        if producer.region == consumer.region == region.number:
            inputs[consumer.name].add(producer.name)
    depth = _depths(inputs, _in_order(inputs))
    boxes: dict[str, Box] = {}
    x, lowest = float(BOX_MARGIN), 0.0
    for column in range(max(depth.values()) + 1):
        names = [name for name in region.chains if depth[name] == column]
        width = max(widths[name] for name in names) * CHARACTER_WIDTH + 2 * BOX_MARGIN
        for row, name in enumerate(names):
            y = BOX_HEADING + BOX_MARGIN / 2 + row * (CHAIN_HEIGHT + ROW_GAP)
            boxes[name] = Box(x, y, width, CHAIN_HEIGHT)
            lowest = max(lowest, y + CHAIN_HEIGHT)
        x += width + COLUMN_GAP
    return boxes, x - COLUMN_GAP + BOX_MARGIN, lowest + BOX_MARGIN


def _depths(inputs: Mapping[Node, Iterable[Node]], order: Iterable[Node]) -> dict[Node, int]:
    """Returns the length of the longest path to each node. In `order`, the inputs of a node come
    before the node.
    """
    depth: dict[Node, int] = {}
    for node in order:
        depth[node] = max((depth[each] + 1 for each in inputs[node]), default=0)
    return depth


def _in_order(inputs: Mapping[str, Iterable[str]]) -> list[str]:
    return list(TopologicalSorter(inputs).static_order())
