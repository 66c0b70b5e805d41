"""Reports the results of the figures of `figure_setups.py`, as text for people and as plain data
for programs.

Units are seconds and threads of capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resource_manager.simulator.drawing import Timeline, area_text, table_text, timeline_text
from resource_manager.simulator.figures import Choice, FigureResult, Phase, tolerated


def figure_text(result: FigureResult, end_s: float = 0.0) -> str:
    """Returns one figure as text: the picture, its numbers, and the statement of the paper.

    Args:
        result: result of the figure.
        end_s: end of the time axis. With the same value, several figures share a scale.
    """
    picture = result.picture
    if isinstance(picture, Timeline):
        parts = [timeline_text(picture, end_s), "", *_of_jobs(result)]
    else:
        parts = [area_text(picture), "", *_of_jobs(result), "", *_of_phases(result.phases)]
    if result.choice:
        parts += ["", *_of_choice(result.choice)]
    parts += ["", f"The paper: {result.set_up.says}.", f"Assumed: {result.set_up.assumed}."]
    return "\n".join(parts)


def shared_end_s(results: Mapping[str, FigureResult], name: str) -> float:
    """Returns the end of a figure's time axis. A figure can have a counterpart: the same work in
    fewer or in more threads. If both were run, the two time axes have the same end.
    """
    mine = results[name]
    pair = [
        each
        for each in results.values()
        if each.set_up.figure == mine.set_up.coarse or each.set_up.coarse == name
    ]
    return max(each.makespan_s for each in [mine, *pair])


def comparison_text(results: Mapping[str, FigureResult]) -> str:
    """Returns a table that compares coarse and fine submission of the same work. Without a pair of
    figures that were both run, the text is empty.
    """
    rows = []
    for fine in results.values():
        coarse = results.get(fine.set_up.coarse)
        if coarse is None:
            continue
        for job in fine.jobs:
            before = coarse.job(job.name)
            rows.append(
                [
                    f"{coarse.set_up.figure}, {fine.set_up.figure}",
                    job.name,
                    f"{before.threads} / {job.threads}",
                    f"{before.took_s:.0f} s",
                    f"{job.took_s:.0f} s",
                    f"{job.took_s / before.took_s - 1:+.0%}",
                ]
            )
        rows.append(_change(coarse, fine, "all: makespan", coarse.makespan_s, fine.makespan_s))
        rows.append(_change(coarse, fine, "all: mean", coarse.mean_s, fine.mean_s))
        rows.append(
            [
                f"{coarse.set_up.figure}, {fine.set_up.figure}",
                "all: utilization",
                "",
                f"{coarse.utilisation:.0%}",
                f"{fine.utilisation:.0%}",
                "",
            ]
        )
    headings = ["figures", "job", "threads, coarse / fine", "coarse", "fine", "change"]
    return table_text(headings, rows) if rows else ""


def _change(
    coarse: FigureResult, fine: FigureResult, what: str, before_s: float, after_s: float
) -> list[str]:
    return [
        f"{coarse.set_up.figure}, {fine.set_up.figure}",
        what,
        "",
        f"{before_s:.0f} s",
        f"{after_s:.0f} s",
        f"{after_s / before_s - 1:+.0%}",
    ]


def figure_data(result: FigureResult) -> dict[str, Any]:
    """Returns one figure as plain values for programs, without pictures."""
    set_up = result.set_up
    return {
        "figure": set_up.figure,
        "title": set_up.title,
        "says": set_up.says,
        "assumed": set_up.assumed,
        "threads_of_capacity": len(set_up.speeds),
        "makespan_s": result.makespan_s,
        "mean_s": round(result.mean_s, 3),
        "utilisation": round(result.utilisation, 4),
        "jobs": [
            {
                "job": job.name,
                "threads": job.threads,
                "submitted_s": job.submitted_s,
                "started_s": job.started_s,
                "done_s": job.done_s,
                "took_s": round(job.took_s, 3),
            }
            for job in result.jobs
        ],
        "lanes": {lane: dict(counts) for lane, counts in result.lane_threads.items()},
        "choice": result.choice and _choice_data(result.choice),
        "phases": [_phase_data(each) for each in result.phases],
    }


def _choice_data(choice: Choice) -> dict[str, Any]:
    return {
        "at_s": choice.at_s,
        "lane": choice.lane,
        "served": choice.served,
        "jobs": dict(choice.jobs),
        "groups": dict(choice.groups),
    }


def _phase_data(phase: Phase) -> dict[str, Any]:
    return {
        "start_s": phase.start_s,
        "end_s": phase.end_s,
        "shares": {name: round(share, 3) for name, share in phase.shares.items()},
        "ideal": {name: round(share, 3) for name, share in phase.ideal.items()},
        "converged_s": phase.converged_s,
        "error": round(phase.error, 4),
    }


def _of_jobs(result: FigureResult) -> Sequence[str]:
    rows = [
        [
            job.name,
            str(job.threads),
            f"{job.submitted_s:g} s",
            f"{job.started_s:g} s",
            f"{job.done_s:g} s",
        ]
        for job in result.jobs
    ]
    return [
        table_text(["job", "threads of work", "came", "first thread began", "done"], rows),
        (
            f"Makespan {result.makespan_s:g} s, mean completion {result.mean_s:.0f} s, "
            f"utilization {result.utilisation:.0%}."
        ),
    ]


def _of_choice(choice: Choice) -> Sequence[str]:
    groups = ", ".join(f"{name} {value:g}" for name, value in sorted(choice.groups.items()))
    jobs = ", ".join(f"{name} {value:g}" for name, value in sorted(choice.jobs.items()))
    return [
        f"At {choice.at_s:g} s {choice.lane} is free, and {choice.served} is served.",
        f"Virtual times: {groups} (groups); {jobs} (jobs).",
    ]


def _of_phases(phases: Sequence[Phase]) -> Sequence[str]:
    rows = [
        [
            f"{phase.start_s:.0f} to {phase.end_s:.0f} s",
            " / ".join(f"{name} {phase.shares[name]:.2f}" for name in phase.shares),
            " / ".join(f"{phase.ideal[name]:.3g}" for name in phase.shares),
            "never" if phase.converged_s is None else f"{phase.converged_s:.0f} s",
            f"{phase.error:.1%}",
        ]
        for phase in phases
    ]
    headings = ["time", "threads of capacity once converged", "ideal", "converged after", "error"]
    return [table_text(headings, rows), f"Converged: {tolerated()}."]
