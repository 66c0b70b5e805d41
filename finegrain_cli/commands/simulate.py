"""Implements `finegrain simulate ...`, which runs the real engine in simulated time, without a
cluster.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.units import parse_duration_ms, parse_pair
from finegrain_cli.commands import simulate_figures
from finegrain_cli.common import OutputOption, enter_command, reporting_errors, write_file
from finegrain_cli.text.output import OutputFormat, print_object

if TYPE_CHECKING:
    from resource_manager.engine.model.settings import EngineSettings, Fairness
    from resource_manager.simulator.replay import Outcome, Progress

OWN_POLICIES: dict[str, Literal["fair", "arrival"]] = {"fair": "fair", "arrival": "arrival"}
POLICIES = (*OWN_POLICIES, "reference:fcfs-easy", "reference:multifactor-easy")
NO_HALF_LIFE = "never"
NO_HALF_LIFE_ALIAS = "none"


def register(app: typer.Typer) -> None:
    """Registers the commands of this module, and `figures`."""
    group = typer.Typer(no_args_is_help=True)
    group.command()(reporting_errors(trace))
    group.command()(reporting_errors(place))
    simulate_figures.register(group)
    app.add_typer(group, name="simulate", help="Run the real scheduling rules in simulated time.")


def trace(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Batch log, plain or gzip.")],
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="NODES|FILE",
            help="Nodes of the cluster: 128x1cpu, 20x80cpu:505G:8gpu@zone=a, or a CSV file; "
            "default: the nodes that the log describes.",
        ),
    ] = "",
    policy: Annotated[
        list[str],
        typer.Option("--policy", help="Order of jobs: fair or arrival; give both to compare them."),
    ] = ["fair"],  # noqa: B006 - typer wants the default as a list
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Format of the log: swf, wagap, openb or dlrm; default: detected from the file.",
        ),
    ] = "",
    group_by: Annotated[
        str,
        typer.Option(
            "--group-by",
            metavar="FIELD",
            help="Key of the log whose values are the resource groups (user, queue, ...), or none; "
            "default: user.",
        ),
    ] = "",
    weights: Annotated[
        str,
        typer.Option(
            "--weights",
            metavar="GROUP=W,...",
            help="Weights of groups; other groups have weight 1.",
        ),
    ] = "",
    moldable: Annotated[
        bool,
        typer.Option(
            "--moldable", help="Start each part of a job as soon as there is room, not all at once."
        ),
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=1, help="Replay at most N jobs.", show_default=False
        ),
    ] = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Replay only jobs that arrive at least this time after the first job.",
        ),
    ] = "0",
    until: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="TIME",
            help="Replay only jobs that arrive less than this time after the first job.",
        ),
    ] = "",
    speedup: Annotated[
        float,
        typer.Option(
            "--speedup",
            metavar="FACTOR",
            help="Factor by which jobs arrive faster than in the log.",
        ),
    ] = 1.0,
    service: Annotated[
        str,
        typer.Option(
            "--service",
            metavar="MEASURE",
            help="Usage of a slot per second: dominant, slots or cpu.",
        ),
    ] = "dominant",
    half_life: Annotated[
        str,
        typer.Option(
            "--half-life",
            metavar="DURATION",
            help=f"Half-life of past usage, such as 15m, or {NO_HALF_LIFE}.",
        ),
    ] = "15m",
    lookahead: Annotated[
        str,
        typer.Option(
            "--lookahead",
            metavar="DURATION",
            help="Count running slots as if they had already run for this additional time, such "
            "as 30s.",
        ),
    ] = "30s",
    starvation_timeout: Annotated[
        str,
        typer.Option(
            "--starvation-timeout",
            metavar="DURATION",
            help="Reserve capacity for a request that has waited for this time while other "
            "requests were placed.",
        ),
    ] = "5m",
    reservations_max: Annotated[
        int,
        typer.Option(
            "--reservations-max",
            metavar="N",
            min=0,
            help="Maximum number of reservations at a time.",
        ),
    ] = 8,
    reserved_part_max: Annotated[
        float,
        typer.Option(
            "--reserved-part-max",
            metavar="FRACTION",
            min=0,
            max=1,
            help="Largest fraction of any resource for all reservations together, without the "
            "reservation of the longest starved request.",
        ),
    ] = 0.1,
    run_times: Annotated[
        str,
        typer.Option(
            "--run-times",
            metavar="SOURCE",
            help="Expected run times of jobs: log (the requested times of the log), none, or "
            "scaled (the real run time times a factor from 1 to 5 for each user).",
        ),
    ] = "log",
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Also write the report to this file.")
    ] = "",
    plot: Annotated[
        list[str],
        typer.Option(
            "--plot", metavar="FILE", help="Write a plot to this file: .png, .svg or .txt."
        ),
    ] = [],  # noqa: B006 - typer wants the default as a list
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Replay a batch log with the real scheduling rules.

    The report shows waits, slowdown, utilization and shares. Time is simulated: a thread takes the
    time that the log gives, and no cluster is needed. The log can be in SWF, the format of the
    Parallel Workloads Archive, or in a CSV format that docs/simulate.md describes.

    \b
    Examples:
      finegrain simulate trace nasa-ipsc-1993.swf.gz --speedup 1.5
      finegrain simulate trace log.swf --nodes 4x8cpu:32G --policy fair --policy arrival
    """
    enter_command(output)
    from resource_manager.engine.model.settings import EngineSettings
    from resource_manager.simulator.replay import Plan, replay, replay_reference
    from resource_manager.simulator.trace_report import trace_data, trace_text
    from resource_manager.simulator.traces.formats import read_workload
    from resource_manager.simulator.traces.jobs import RUN_TIMES
    from resource_manager.simulator.traces.node_lists import read_nodes

    fairness = replace(
        _fairness(service, half_life, lookahead, starvation_timeout),
        reservations_max=reservations_max,
        reserved_part_max=reserved_part_max,
    )
    orders = _policies(policy)
    # Stage 1: check all options before the replay, which can take minutes.
    _check_plots(plot)
    _check_output_files([*plot, *filter(None, [json_file])])
    if not 0 < speedup < float("inf"):
        raise InvalidArgument("--speedup", speedup, "a number above 0, such as 1.5")
    workload = read_workload(Path(file), format_name).picked(
        limit=limit,
        from_ms=parse_duration_ms("--from", from_),
        until_ms=parse_duration_ms("--until", until) if until else None,
        speedup=speedup,
    )
    if run_times not in RUN_TIMES:
        raise InvalidArgument("--run-times", run_times, f"one of {', '.join(RUN_TIMES)}")
    workload = workload.expecting(run_times)
    if not nodes and not workload.nodes:
        expected = (
            "nodes such as 128x1cpu, or a list: this log does not name the nodes that it was "
            "recorded on"
        )
        raise InvalidArgument("--nodes", nodes, expected)
    # Stage 2: replay the log once for each policy.
    cluster = read_nodes(nodes or workload.nodes)
    plan = Plan(EngineSettings(fairness=fairness), group_by, _weights(weights), moldable)
    outcomes = []
    for order in orders:
        progress = _progress(order)
        own = OWN_POLICIES.get(order)
        if own is not None:
            ordered = replace(plan, settings=_ordered(plan.settings, own))
            outcomes.append(replay(workload, cluster, ordered, progress))
        else:
            outcomes.append(replay_reference(workload, cluster, plan, order, progress))
        _clear_progress()
    # Stage 3: write the report. The text for standard output comes last.
    data = trace_data(workload, cluster, plan, outcomes)
    if json_file:
        write_file(json_file, json.dumps(data, indent=2) + "\n")
    for name in plot:
        _draw(name, outcomes, data["nodes"]["total"].get("cpu_milli", 0) / 1_000)
    print_object("TraceReport", data, output, trace_text(data))


def place(
    stdio: Annotated[
        bool,
        typer.Option("--stdio", help="Read requests from standard input, one JSON per line."),
    ] = False,
) -> None:
    """Place single requests on simulated hosts, for another program.

    The program writes one JSON message per line to standard input, and reads the answers from
    standard output. docs/simulate.md describes the messages.

    \b
    Examples:
      finegrain simulate place --stdio < requests.jsonl
    """
    enter_command(OutputFormat.TABLE)
    from resource_manager.simulator.place import serve

    if not stdio:
        raise InvalidArgument(
            "--stdio", "not given", "--stdio; requests come only from standard input"
        )
    serve(sys.stdin, sys.stdout)


def _fairness(service: str, half_life: str, lookahead: str, starvation_timeout: str) -> Fairness:
    from resource_manager.engine.model.settings import Fairness

    never = half_life in (NO_HALF_LIFE, NO_HALF_LIFE_ALIAS)
    half_life_ms = None if never else parse_duration_ms("--half-life", half_life)
    if half_life_ms == 0:
        raise InvalidArgument("--half-life", half_life, f"more than 0, or {NO_HALF_LIFE}")
    timeout_ms = parse_duration_ms("--starvation-timeout", starvation_timeout)
    measures: dict[str, Literal["dominant", "slots", "cpu"]] = {
        "dominant": "dominant",
        "slots": "slots",
        "cpu": "cpu",
    }
    if service not in measures:
        raise InvalidArgument("--service", service, f"one of {', '.join(measures)}")
    return Fairness(
        usage_measure=measures[service],
        half_life_ms=half_life_ms,
        lookahead_ms=parse_duration_ms("--lookahead", lookahead),
        starvation_timeout_ms=timeout_ms,
    )


def _policies(names: list[str]) -> list[str]:
    for name in names:
        if name not in POLICIES:
            raise InvalidArgument("--policy", name, f"one of {', '.join(POLICIES)}")
    return list(dict.fromkeys(names))


def _ordered(settings: EngineSettings, order: Literal["fair", "arrival"]) -> EngineSettings:
    return replace(settings, fairness=replace(settings.fairness, order=order))


def _weights(text: str) -> dict[str, float]:
    weights = {}
    for pair in filter(None, text.split(",")):
        name, value = parse_pair("--weights", pair)
        try:
            weights[name] = float(value)
        except ValueError:
            raise InvalidArgument("--weights", pair, "GROUP=NUMBER, such as user-3=4") from None
    return weights


def _progress(order: str) -> Progress | None:
    """Returns a function that shows progress, or None if standard error is not a terminal."""
    if not sys.stderr.isatty():
        return None

    def show(over: int, jobs: int) -> None:
        print(f"\r{order}: {over} of {jobs} jobs have ended", end="", file=sys.stderr, flush=True)

    return show


def _clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _check_plots(names: list[str]) -> None:
    for name in names:
        suffix = Path(name).suffix
        if suffix not in (".png", ".svg", ".txt"):
            raise InvalidArgument("--plot", name, "a name that ends in .png, .svg or .txt")
        if suffix != ".txt":
            from resource_manager.simulator.drawing_png import require_matplotlib

            require_matplotlib()


def _check_output_files(names: list[str]) -> None:
    """Checks paths of output files before a replay, which can take minutes.

    Raises:
        ConfigurationError: a path is a directory, or is in a folder that does not exist.
    """
    for name in names:
        path = Path(name)
        if path.is_dir() or not path.parent.is_dir():
            why = "it is a directory" if path.is_dir() else f"{path.parent} is no directory"
            raise ConfigurationError(f"cannot write {name}: {why}")


def _draw(name: str, outcomes: list[Outcome], total_cores: float) -> None:
    from resource_manager.simulator.trace_plots import save_trace_picture, trace_plot_text

    if name.endswith(".txt"):
        write_file(name, trace_plot_text(outcomes, total_cores) + "\n")
        return
    try:
        save_trace_picture(Path(name), outcomes, total_cores)
    except OSError as error:
        raise ConfigurationError(f"cannot write {name}: {error}") from error
