"""Draws the pictures of `drawing.py` as PNG or SVG files, with matplotlib (the extra `plots`).

matplotlib is imported only when it is needed. It draws into memory, so it needs no display.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import ConfigurationError
from resource_manager.simulator.drawing import Area, Timeline
from resource_manager.simulator.steps import Steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito. People with color blindness can distinguish its colors.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00", "#F0E442", "#999999")
_FULL_LABEL, _SHORT_LABEL = 1 / 18, 1 / 40
"""A bar shows its label if it is longer than `_FULL_LABEL` of the time axis. A shorter bar shows
its short label if it is longer than `_SHORT_LABEL` of the axis.
"""

WIDTH_INCHES = 10.0
DOTS_PER_INCH = 160  # 1,600 pixels wide


def require_matplotlib() -> None:
    """Checks that matplotlib is installed.

    Raises:
        ConfigurationError: matplotlib is not installed; the message says how to install it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError(
            "pictures as PNG or SVG need matplotlib: pip install 'finegrain[plots]', or draw only"
            " text"
        )


def save_picture(path: Path, pictures: Sequence[Timeline | Area]) -> None:
    """Draws the pictures one below another, with the same time axis, into one file: PNG or SVG, by
    the suffix of its name.

    Raises:
        ConfigurationError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    require_matplotlib()
    heights = [_height(each) for each in pictures]
    figure = _figure(sum(heights))
    axes = figure.subplots(len(pictures), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[
        :, 0
    ]
    end_s = max(each.end_s for each in pictures)
    colours = _colours(pictures)
    for ax, picture in zip(axes, pictures, strict=True):
        if isinstance(picture, Timeline):
            _draw_timeline(ax, picture, colours)
        else:
            _draw_area(ax, picture, colours)
        ax.set_title(picture.title, fontsize=10, loc="left")
        ax.set_xlim(0, end_s)
    axes[-1].set_xlabel("seconds")
    figure.savefig(path)


def _figure(height_inches: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Do not use pyplot, which would look for a display and keep every figure in memory.
    figure = Figure(figsize=(WIDTH_INCHES, height_inches), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _height(picture: Timeline | Area) -> float:
    return 1.0 + 0.22 * len(picture.lanes) if isinstance(picture, Timeline) else 3.2


def _colours(pictures: Sequence[Timeline | Area]) -> dict[str, str]:
    """Assigns a color to each name of a legend. A name has the same color in all pictures."""
    names: dict[str, None] = {}
    for each in pictures:
        names |= dict.fromkeys(each.marks)
    for each in pictures:
        if isinstance(each, Timeline):
            names |= dict.fromkeys(each.meanings.values())
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def _draw_timeline(ax: Axes, timeline: Timeline, colours: Mapping[str, str]) -> None:
    heights = {lane: number for number, lane in enumerate(reversed(timeline.lanes))}
    named: set[str] = set()
    for bar in timeline.bars:
        name = timeline.meanings.get(bar.mark, bar.job)
        ax.barh(
            heights[bar.lane],
            bar.end_s - bar.start_s,
            left=bar.start_s,
            height=0.8,
            color=colours[name],
            edgecolor="white",
            linewidth=0.7,
            # With a label on every bar, the legend would contain the same name several times.
            label=name if name not in named else None,
        )
        named.add(name)
        width = (bar.end_s - bar.start_s) / timeline.end_s
        label = bar.label if width > _FULL_LABEL else bar.short_label
        if label and width > _SHORT_LABEL:
            middle = (bar.start_s + bar.end_s) / 2
            ax.text(middle, heights[bar.lane], label, ha="center", va="center", fontsize=5.5)
    ax.set_yticks(list(heights.values()), list(heights), fontsize=7)
    legend_beside(ax)


def _draw_area(ax: Axes, area: Area, colours: Mapping[str, str]) -> None:
    moments = sorted({ms / 1_000 for each in area.flows.values() for ms in each.times_ms} | {0.0})
    # Every flow needs a value at the end, and at each moment at which any flow changes.
    times_s = [each for each in moments if each <= area.end_s] + [area.end_s]
    stacked = [[steps.at(round(at_s * 1_000)) for at_s in times_s] for steps in area.flows.values()]
    ax.stackplot(
        times_s,
        *stacked,
        labels=list(area.flows),
        colors=[colours[flow] for flow in area.flows],
        step="post",
    )
    ax.set_ylim(0, area.capacity)
    ax.set_ylabel("threads of capacity", fontsize=8)
    for number, (start_s, end_s, shares) in enumerate(area.ideal):
        # The flows are stacked, so a line is the sum of the shares up to its flow.
        levels = list(accumulate(shares.get(flow, 0.0) for flow in area.flows))
        # matplotlib leaves out names that begin with an underscore.
        label = "_again" if number else "ideal shares"
        ax.hlines(levels, start_s, end_s, colors="black", linestyles="--", lw=0.9, label=label)
    legend_beside(ax)


def legend_beside(ax: Axes) -> None:
    """Draws the legend on the right of the picture. So the legend hides no data."""
    ax.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.005, 1.0), borderaxespad=0.0)


def _points(steps: Steps, end_s: float) -> tuple[list[float], list[float]]:
    end_ms = round(end_s * 1_000)
    pieces = list(steps.pieces(0, end_ms))
    times_s = [begin / 1_000 for begin, _, _ in pieces]
    values = [value for _, _, value in pieces]
    return [*times_s, end_s], [*values, values[-1] if values else 0.0]
