"""`finegrain job ...`: job graphs. `plan` shows what a graph needs, without a cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from finegrain.errors import InvalidArgument
from finegrain_cli.common import OutputOption, enter_command, reporting_errors, write_file
from finegrain_cli.text.output import API_VERSION, OutputFormat, json_text, print_object, say


class DrawForm(StrEnum):
    """Values of `--draw`."""

    TEXT = "text"
    SVG = "svg"
    MERMAID = "mermaid"


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    group = typer.Typer(no_args_is_help=True)
    # Without a callback, a group of one command would be that command.
    group.callback()(_job)
    group.command()(reporting_errors(plan))
    app.add_typer(group, name="job", help="Plan jobs that consist of connected operators.")


def _job() -> None:
    pass


def plan(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH", help="Job file FILE.toml, or FILE.py:FUNCTION that returns a JobGraph."
        ),
    ],
    draw: Annotated[
        DrawForm | None,
        typer.Option("--draw", help="Only a picture, in this form.", show_default=False),
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Write to this file instead.")
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the plan of a job graph: regions, slots, tasks, memory fractions, network buffers.

    Nothing runs, and no cluster is needed. Example: finegrain job plan clicks.toml --draw svg
    --out clicks.svg
    """
    enter_command(output)
    from finegrain_cli.graph_loading import load_graph
    from finegrain_client.graph import describe, plan_to_json
    from finegrain_client.graph import draw as drawn

    as_json = output in (OutputFormat.JSON, OutputFormat.JSONL)
    if draw is not None and as_json:
        raise InvalidArgument("--draw", str(draw), f"no --draw together with -o {output}")
    compiled = load_graph(graph).compile()
    wide = output is OutputFormat.WIDE
    text = describe(compiled, wide=wide) if draw is None else drawn(compiled, draw).rstrip("\n")
    if not out:
        print_object("JobPlan", plan_to_json(compiled), output, text)
        return
    if as_json:
        text = json_text({"api_version": API_VERSION, "kind": "JobPlan", **plan_to_json(compiled)})
    write_file(out, f"{text}\n")
    say(f"finegrain: wrote the plan of {compiled.name} to {out}")
