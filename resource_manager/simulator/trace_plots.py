"""Pictures of a replayed log: cores in use by group, waiting threads, and the distribution of
waits.

The pictures are text, PNG files or SVG files. matplotlib (the extra `plots`) draws the files. Each
picture shows all policies. Time is in days.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from resource_manager.simulator.drawing import WIDTH
from resource_manager.simulator.drawing_png import (
    COLOURS,
    DOTS_PER_INCH,
    WIDTH_INCHES,
    legend_beside,
    require_matplotlib,
)
from resource_manager.simulator.measures import nearest_rank
from resource_manager.simulator.replay import Outcome
from resource_manager.simulator.steps import Steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DAY_MS = 86_400_000
GROUPS_NAMED = 7
OTHERS = "others"
POINTS = 400
"""Number of time slices of a curve."""

LEVELS = " .:-=+*#%@"
"""Characters for the height of a curve, from 0 to the maximum."""

QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def slices(steps: Steps, begin_ms: int, end_ms: int, count: int) -> list[float]:
    """Returns the means of a quantity over `count` equal slices of an interval.

    Args:
        steps: the steps of the quantity.
        begin_ms: begin of the interval.
        end_ms: end of the interval.
        count: number of slices.
    """
    length = max(end_ms - begin_ms, count)  # no slice is shorter than 1 ms
    edges = [begin_ms + length * number // count for number in range(count + 1)]
    means, pieces, number = [0.0] * count, steps.pieces(begin_ms, begin_ms + length), 0
    for since, until, value in pieces:
        at = since
        # A piece can span several slices, so divide it among them.
        while at < until:
            stop = min(until, edges[number + 1])
            means[number] += value * (stop - at)
            at = stop
            if at == edges[number + 1]:
                number += 1
    return [
        mean / (after - before)
        for mean, before, after in zip(means, edges, edges[1:], strict=False)
    ]


def trace_plot_text(outcomes: Sequence[Outcome], total_cores: float, width: int = WIDTH) -> str:
    """Returns all pictures as text: one line per curve, whose characters show its height.

    Args:
        outcomes: the outcome of each policy.
        total_cores: cores of the cluster.
        width: number of columns of the time axis.
    """
    end_ms = max(outcome.begin_ms + outcome.makespan_ms for outcome in outcomes)
    # All policies share one time axis. So their pictures can be compared.
    begin_ms = min(outcome.begin_ms for outcome in outcomes)
    names = max(len(outcome.policy) for outcome in outcomes)
    most = max(
        max(slices(outcome.waiting, begin_ms, end_ms, width), default=0) for outcome in outcomes
    )
    lines = [f"cores in use, of {total_cores:g} ('{LEVELS[1]}' to '{LEVELS[-1]}')"]
    for outcome in outcomes:
        curve = _sum_of(outcome.cores, begin_ms, end_ms, width)
        lines.append(f"{outcome.policy:>{names}} {_marks(curve, total_cores)}")
    lines += ["", f"threads waiting, of {most:.0f} at most"]
    for outcome in outcomes:
        curve = slices(outcome.waiting, begin_ms, end_ms, width)
        lines.append(f"{outcome.policy:>{names}} {_marks(curve, most)}")
    days = f"{(end_ms - begin_ms) / DAY_MS:.1f} days"
    lines += [f"{'':>{names}} 0{days:>{width - 1}}", "", "share of jobs that waited no longer than"]
    lines.append(f"{'':>{names}} " + "".join(f"{f'{q:.0%}':>10}" for q in QUANTILES))
    for outcome in outcomes:
        ordered = sorted(outcome.waits_ms)
        waits = [nearest_rank(ordered, q) / 1_000 if ordered else 0 for q in QUANTILES]
        lines.append(f"{outcome.policy:>{names}} " + "".join(f"{wait:>9.0f}s" for wait in waits))
    return "\n".join(lines)


def save_trace_picture(path: Path, outcomes: Sequence[Outcome], total_cores: float) -> None:
    """Draws all pictures into one file: PNG or SVG, by the suffix of its name.

    Args:
        path: path of the file.
        outcomes: the outcome of each policy.
        total_cores: cores of the cluster.

    Raises:
        ConfigurationError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = len(outcomes) + 2
    figure = Figure(figsize=(WIDTH_INCHES, 2.6 * rows), dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
    begin_ms = min(outcome.begin_ms for outcome in outcomes)
    end_ms = max(outcome.begin_ms + outcome.makespan_ms for outcome in outcomes)
    days = [(end_ms - begin_ms) * at / POINTS / DAY_MS for at in range(POINTS)]
    for ax, outcome in zip(axes, outcomes, strict=False):
        _draw_use(ax, outcome, days, (begin_ms, end_ms), total_cores)
    _draw_waiting(axes[-2], outcomes, days, (begin_ms, end_ms))
    _draw_waits(axes[-1], outcomes)
    figure.savefig(path)


def _draw_use(
    ax: Axes, outcome: Outcome, days: list[float], span_ms: tuple[int, int], total_cores: float
) -> None:
    curves = {
        name: slices(steps, *span_ms, POINTS)
        for name, steps in list(outcome.cores.items())[:GROUPS_NAMED]
    }
    rest = dict(list(outcome.cores.items())[GROUPS_NAMED:])
    if rest:
        curves[OTHERS] = _sum_of(rest, *span_ms, POINTS)
    if curves:
        ax.stackplot(days, *curves.values(), labels=list(curves), colors=COLOURS[: len(curves)])
        _draw_ideal(ax, outcome, list(curves), days, span_ms)
        legend_beside(ax)
    ax.set_xlim(0, days[-1])
    ax.set_ylim(0, total_cores)
    ax.set_ylabel("cores in use", fontsize=8)
    ax.set_title(outcome.policy, fontsize=10, loc="left")


def _draw_ideal(
    ax: Axes, outcome: Outcome, names: Sequence[str], days: list[float], span_ms: tuple[int, int]
) -> None:
    """Draws a line at the upper end of each group's ideal share. The groups are stacked in the
    order of `names`. The last group has no line, because its line is the use itself.
    """
    in_use = _sum_of(outcome.cores, *span_ms, POINTS)
    levels = [0.0] * POINTS
    for number, name in enumerate(names[:-1]):
        parts = slices(outcome.ideal.get(name, Steps()), *span_ms, POINTS)
        levels = [
            level + part * cores for level, part, cores in zip(levels, parts, in_use, strict=True)
        ]
        # matplotlib leaves out names that begin with an underscore.
        label = "_again" if number else "ideal shares"
        ax.plot(days, levels, color="black", linestyle="--", linewidth=0.6, label=label)


def _draw_waiting(
    ax: Axes, outcomes: Sequence[Outcome], days: list[float], span_ms: tuple[int, int]
) -> None:
    for number, outcome in enumerate(outcomes):
        curve = slices(outcome.waiting, *span_ms, POINTS)
        ax.plot(days, curve, label=outcome.policy, color=COLOURS[number])
    ax.set_xlim(0, days[-1])
    # Without a waiting thread, the axis would have only a tiny range.
    ax.set_ylim(0, max(1.0, ax.get_ylim()[1]))
    ax.set_ylabel("threads waiting", fontsize=8)
    ax.set_xlabel("days", fontsize=8)
    legend_beside(ax)


def _draw_waits(ax: Axes, outcomes: Sequence[Outcome]) -> None:
    longest_s = max([1.0, *(wait / 1_000 for each in outcomes for wait in each.waits_ms)])
    for number, outcome in enumerate(outcomes):
        waits_s = [wait / 1_000 for wait in sorted(outcome.waits_ms)]
        parts = [(at + 1) / len(waits_s) for at in range(len(waits_s))]
        # The line goes on to the longest wait of all policies.
        ax.plot(
            [*waits_s, longest_s],
            [*parts, 1.0],
            label=outcome.policy,
            color=COLOURS[number],
            drawstyle="steps-post",
        )
    # A purely logarithmic scale cannot show waits of 0.
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlim(0, longest_s)
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("wait in seconds", fontsize=8)
    ax.set_ylabel("share of jobs", fontsize=8)
    legend_beside(ax)


def _sum_of(curves: Mapping[str, Steps], begin_ms: int, end_ms: int, count: int) -> list[float]:
    sums = [0.0] * count
    for steps in curves.values():
        for number, value in enumerate(slices(steps, begin_ms, end_ms, count)):
            sums[number] += value
    return sums


def _marks(curve: Sequence[float], most: float) -> str:
    """Returns a curve as characters. Rounds up. So each value above 0 is visible."""
    top = len(LEVELS) - 1
    return "".join(
        LEVELS[min(top, max(1, math.ceil(value / most * top - 1e-9)))] if value > 0 else LEVELS[0]
        for value in curve
    )
