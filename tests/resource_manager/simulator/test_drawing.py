"""Compares text pictures character by character, and PNG files by their content."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from finegrain.errors import ConfigurationError
from resource_manager.simulator.drawing import (
    Area,
    Bar,
    Timeline,
    area_text,
    table_text,
    timeline_text,
)
from resource_manager.simulator.drawing_png import save_picture
from resource_manager.simulator.figure_setups import all_set_ups
from resource_manager.simulator.figures import run_figure
from resource_manager.simulator.steps import Steps

TIMELINE = Timeline(
    "Two threads of capacity",
    ["C1", "C10"],
    [
        Bar("C1", 0, 10, "Job 1", "W1"),
        Bar("C1", 10, 20, "Job 1", "W3"),
        Bar("C1", 30, 40, "Job 2"),
        Bar("C10", 0, 39, "Job 1", "W2", mark="U"),
        Bar("C10", 39, 39.9, "Job 2"),
    ],
    {"Job 1": "1", "Job 2": "2"},
    {"U": "State U"},
)

AREA = Area(
    "Shares",
    capacity=8,
    end_s=40,
    flows={
        "big": Steps([0, 30_000], [6, 0]),
        "small": Steps([0, 20_000, 30_000], [2, 1, 8]),
    },
    marks={"big": "B", "small": "s"},
)


def test_a_timeline_has_a_line_per_thread_of_capacity() -> None:
    assert timeline_text(TIMELINE, width=20).splitlines() == [
        "Two threads of capacity",
        " C1 |1111|1111.....|2222   3",
        "C10 |UUUUUUUUUUUUUUUUUU2   2",
        "    0        20     40 s",
        "1 Job 1  2 Job 2  U State U  . idle",
    ]


def test_timelines_on_one_scale_end_where_they_end() -> None:
    assert timeline_text(TIMELINE, end_s=80, width=20).splitlines()[1:4] == [
        " C1 |1|11...|2             3",
        "C10 |UUUUUUUUU2            2",
        "    0        40     80 s",
    ]


def test_a_thread_too_short_to_be_seen_still_gets_a_column() -> None:
    short = Timeline("", ["C1"], [Bar("C1", 99.9, 100, "a")], {"a": "a"})
    assert timeline_text(short, width=10).splitlines()[1] == "C1 .........a   1"


def test_nothing_ran() -> None:
    empty = Timeline("Nothing", ["C1"], [], {})
    assert timeline_text(empty, width=5).splitlines()[1] == "C1         0"


def test_shares_are_filled_up_from_the_bottom() -> None:
    assert area_text(AREA, width=8, height=8).splitlines() == [
        "Shares",
        "8 ssss..ss",
        "  ssssssss",
        "6 BBBBBBss",
        "  BBBBBBss",
        "4 BBBBBBss",
        "  BBBBBBss",
        "2 BBBBBBss",
        "  BBBBBBss",
        "  0   40 s",
        "B big  s small  . idle",
    ]


def test_a_table_reads_as_text_and_as_markdown() -> None:
    assert table_text(["job", "done"], [["Job 1", "8 s"]]).splitlines() == [
        "| job   | done |",
        "| ----- | ---- |",
        "| Job 1 | 8 s  |",
    ]


def test_png_files_hold_pictures_one_below_another(tmp_path: Path) -> None:
    from matplotlib.image import imread

    save_picture(tmp_path / "one.png", [TIMELINE])
    save_picture(tmp_path / "two.png", [TIMELINE, AREA])

    one, two = imread(tmp_path / "one.png"), imread(tmp_path / "two.png")
    assert one.shape[1] == two.shape[1]
    assert one.shape[0] < two.shape[0]
    assert one.shape[1] == 1_600
    assert _has_colour(one, "#56B4E9"), "a bar of Job 1"


def test_svg_files_name_threads_by_job_and_show_ideal_shares(tmp_path: Path) -> None:
    ideal = [(0.0, 20.0, {"big": 6.0, "small": 2.0})]
    named = [replace(each, label=f"{each.job} {each.label}") for each in TIMELINE.bars]
    pictures: list[Timeline | Area] = [replace(TIMELINE, bars=named), replace(AREA, ideal=ideal)]
    save_picture(tmp_path / "two.svg", pictures)

    texts = re.findall(r"<!-- (.*?) -->", (tmp_path / "two.svg").read_text())
    assert {"Job 1 W1", "Job 1 W2", "ideal shares", "small", "State U"} <= set(texts)


def test_the_lines_of_ideal_shares_are_those_of_the_phases() -> None:
    area = run_figure(all_set_ups()["3-10"]).picture
    assert isinstance(area, Area)
    first = area.ideal[0][2]
    assert [round(first[flow]) for flow in area.flows] == [48, 6, 6]


def test_the_legend_is_beside_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _path: saved.append(figure))
    save_picture(tmp_path / "two.png", [TIMELINE, AREA])
    (figure,) = saved
    figure.canvas.draw()
    for ax in figure.axes:
        legend = ax.get_legend().get_window_extent()
        assert legend.x0 >= ax.get_window_extent().x1


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"finegrain\[plots\]"):
        save_picture(tmp_path / "x.png", [AREA])
    assert not list(tmp_path.iterdir())


def _has_colour(image: Any, colour: str) -> bool:
    wanted = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return bool((abs(image[..., :3] - wanted).max(axis=-1) < 0.05).any())
