"""Implements `finegrain simulate figures`, which runs Figures 3-1 to 3-10 with the real engine and
draws them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain_cli.common import OutputOption, enter_command, reporting_errors
from finegrain_cli.text.output import OutputFormat, print_list, say

if TYPE_CHECKING:
    from resource_manager.simulator.figures import FigureResult


def register(app: typer.Typer) -> None:
    """Registers the command with `finegrain simulate`."""
    app.command()(reporting_errors(figures))


def figures(
    figure: Annotated[
        list[str],
        typer.Option(
            "--figure", metavar="3-N", help="Run only this figure, such as 3-1; can be repeated."
        ),
    ] = [],  # noqa: B006 - typer wants the default as a list
    out: Annotated[
        str,
        typer.Option(
            "--out", metavar="DIR", help="Write each figure to this folder, as .txt, .png and .svg."
        ),
    ] = "",
    text_only: Annotated[
        bool,
        typer.Option(
            "--text-only",
            help="With --out: do not write .png and .svg files, which need matplotlib.",
        ),
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Simulate and draw figures that explain fine-grained submission.

    These are Figures 3-1 to 3-10 of "Improved Batch Processing Through Fine-Grained Thread
    Submission". The command applies the real scheduling rules in simulated time. Three pairs of
    figures show the same work in two forms: with few long threads (coarse), and with many short
    threads (fine). The pairs are 3-1 and 3-4, 3-2 and 3-5, and 3-3 and 3-6.

    \b
    Examples:
      finegrain simulate figures
      finegrain simulate figures --figure 3-1 --figure 3-4
    """
    enter_command(output)
    from resource_manager.simulator.drawing_png import require_matplotlib
    from resource_manager.simulator.figure_report import (
        comparison_text,
        figure_data,
        figure_text,
        shared_end_s,
    )
    from resource_manager.simulator.figure_setups import all_set_ups
    from resource_manager.simulator.figures import run_figure

    set_ups = all_set_ups()
    for name in figure:
        if name not in set_ups:
            raise InvalidArgument("--figure", name, f"one of {', '.join(set_ups)}")
    # Check for matplotlib before the simulation of the figures, which takes some time.
    if out and not text_only:
        require_matplotlib()
    results = {name: run_figure(set_ups[name]) for name in set_ups if not figure or name in figure}
    if out:
        _write(Path(out), results, pictures=not text_only)
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_list("FigureList", [figure_data(each) for each in results.values()], (), output)
        return
    texts = [figure_text(each, shared_end_s(results, name)) for name, each in results.items()]
    comparison = comparison_text(results)
    print("\n\n".join([*texts, comparison] if comparison else texts))


def _write(folder: Path, results: dict[str, FigureResult], *, pictures: bool) -> None:
    from resource_manager.simulator.drawing_png import save_picture
    from resource_manager.simulator.figure_report import figure_text, shared_end_s

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, result in results.items():
            text = figure_text(result, shared_end_s(results, name))
            (folder / f"figure-{name}.txt").write_text(f"{text}\n", encoding="utf-8")
            if pictures:
                coarse = results.get(result.set_up.coarse)
                drawn = [result.picture] if coarse is None else [coarse.picture, result.picture]
                for suffix in ("png", "svg"):
                    save_picture(folder / f"figure-{name}.{suffix}", drawn)
    except OSError as error:
        raise ConfigurationError(f"cannot write to {folder}: {error}") from error
    say(f"finegrain: wrote {len(results)} figures to {folder}")
