"""Pictures of a run as text: the threads of work on each thread of capacity, and each flow's share
over time.

The text is for terminals and documents. `drawing_png.py` draws the same pictures as PNG or SVG
files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from resource_manager.simulator.steps import Steps

WIDTH = 66
"""Columns of the time axis."""

HEIGHT = 12
"""Lines of a picture of shares."""

IDLE = "."
EDGE = "|"


@dataclass(frozen=True, slots=True)
class Bar:
    """A thread of work on its thread of capacity.

    `mark` is the character of the bar; empty: the character of its job. `label` is the name of the
    thread with its job, and is shown if there is room. With less room, `short_label` is shown.
    """

    lane: str
    start_s: float
    end_s: float
    job: str
    label: str = ""
    mark: str = ""
    short_label: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Threads of capacity, one below another, and the threads of work that ran on them.

    `marks` has the character of each job. `meanings` explains all other characters.
    """

    title: str
    lanes: Sequence[str]
    bars: Sequence[Bar]
    marks: Mapping[str, str]
    meanings: Mapping[str, str] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """The time when the last thread of work ends."""
        return max((each.end_s for each in self.bars), default=0.0)


@dataclass(frozen=True, slots=True)
class Area:
    """The capacity that each flow has over time. Flows are drawn from the bottom, in the order of
    `flows`.
    """

    title: str
    capacity: float
    end_s: float
    flows: Mapping[str, Steps]
    marks: Mapping[str, str]
    # intervals (start and end in seconds) with the ideal share of each flow; drawn as lines in PNG
    # and SVG files
    ideal: Sequence[tuple[float, float, Mapping[str, float]]] = ()


def timeline_text(timeline: Timeline, end_s: float = 0.0, width: int = WIDTH) -> str:
    """Returns the timeline as text: a line per thread of capacity, with `width` columns up to
    `end_s`.

    A thread of work begins with an edge if it has at least two columns. A thread that is narrower
    than a column can be hidden by the next thread. The number at the end of a line counts the
    line's threads of work.

    Args:
        timeline: the timeline to draw.
        end_s: end of the time axis; 0: the end of the timeline.
        width: columns of the time axis.
    """
    end_s = end_s or timeline.end_s or 1.0
    names = max(map(len, timeline.lanes), default=0)
    over = min(width, round(timeline.end_s / end_s * width))
    lines = [timeline.title]
    for lane in timeline.lanes:
        bars = [each for each in timeline.bars if each.lane == lane]
        row = list(IDLE * over + " " * (width - over))
        for bar in sorted(bars, key=lambda each: each.start_s):
            # A bar is at least one column wide, and never outside the row.
            first = min(round(bar.start_s / end_s * width), width - 1)
            after = min(max(first + 1, round(bar.end_s / end_s * width)), width)
            mark = bar.mark or timeline.marks[bar.job]
            row[first:after] = mark * (after - first)
            if after - first > 1:
                row[first] = EDGE
        lines.append(f"{lane:>{names}} {''.join(row)} {len(bars):3}")
    lines.append(_axis(end_s, width, names))
    lines.append(
        _legend({mark: job for job, mark in timeline.marks.items()} | dict(timeline.meanings))
    )
    return "\n".join(lines)


def area_text(area: Area, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Returns the shares as text: each column is a slice of time, filled with its mean shares.

    Args:
        area: the shares to draw.
        width: columns of the time axis.
        height: lines for the whole capacity.
    """
    end_ms = round(area.end_s * 1_000) or 1
    columns = []
    for column in range(width):
        # Use integer arithmetic. So neighboring slices share their edge, and the last slice ends at
        # the end of the area.
        begin, end = end_ms * column // width, max(1, end_ms * (column + 1) // width)
        filled, level = "", 0.0
        for flow, steps in area.flows.items():
            level += steps.mean(begin, end)
            # Round the sum and not each share. Otherwise the column could exceed the capacity.
            filled += area.marks[flow] * (round(level / area.capacity * height) - len(filled))
        columns.append(filled.ljust(height, IDLE))
    numbers = [f"{area.capacity * (line + 1) / height:g}" for line in range(height)]
    names = max(map(len, numbers))
    lines = [area.title]
    for line in reversed(range(height)):
        shown = numbers[line] if line % 2 else ""
        lines.append(f"{shown:>{names}} {''.join(column[line] for column in columns)}")
    lines.append(_axis(area.end_s, width, names))
    lines.append(_legend({area.marks[flow]: flow for flow in area.flows}))
    return "\n".join(lines)


def table_text(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table with padded columns. So the table is also readable as plain text."""
    cells = [list(headings), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_row(row, widths) for row in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(padded) + " |"


def _axis(end_s: float, width: int, names: int) -> str:
    """Returns the time axis: seconds at the beginning, the end and, if there is room,
    the middle.
    """
    middle, end = f"{end_s / 2:g}", f"{end_s:g} s"
    row = "0".ljust(width // 2 - len(middle) // 2) + middle
    if len(row) + len(end) >= width:
        row = "0"
    return " " * (names + 1) + row + end.rjust(width - len(row))


def _legend(meanings: Mapping[str, str]) -> str:
    shown = [f"{mark} {meaning}" for mark, meaning in meanings.items()]
    return "  ".join([*shown, f"{IDLE} idle"])
