"""Measures two things for several lookaheads: how quickly shares follow a change, and how much
shares oscillate.

    python -m bench.damping [--threads 10,60,120] [--lookahead 0,15,30,60,120] [--alike]

A cluster has 60 slots in virtual time. Usage is counted in slots, with a half-life of 15 minutes.
First DEFAULT1 has all slots. Then MED1 arrives; its group has weight 4, so the fair shares are 12
and 48 slots. Then DEFAULT2 arrives in the group of DEFAULT1, and the fair shares are 6, 48 and 6
slots. Later DEFAULT2 ends, and the fair shares are 12 and 48 slots again. Threads of work take 0.5
to 1.5 times the mean duration. With `--alike`, all threads take the mean duration, so threads that
began together end together.

The benchmark prints a row of Markdown for each mean duration and lookahead. For each of the three
changes, the row has the seconds until every job stays within 5 % of its share in every window of 60
s; "-" means that a job did not converge before the next change. The row also has the largest error
in a window of 60 s. Only windows count that begin at least a minute plus three mean durations after
a change.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

from resource_manager.engine.model.settings import Fairness
from resource_manager.simulator.drawing import table_text
from resource_manager.simulator.figure_setups import SetUp, one_after_another
from resource_manager.simulator.figures import compared, run_set_up
from resource_manager.simulator.share_error import WINDOW_S

STEP_S = 5


def measure(set_up: SetUp, settled_s: float) -> tuple[list[float | None], float]:
    """Returns the time to converge after each change, and the largest error after the shares
    settled.
    """
    log = run_set_up(set_up).log
    comparison = compared(set_up, log)
    dry_s = {name: (job.last_start_ms or 0) / 1_000 for name, job in log.jobs.items()}
    over_s = min(dry_s["DEFAULT1"], dry_s["MED1"])
    changes = [600.0, 1_200.0, dry_s["DEFAULT2"], over_s]
    converged = [comparison.converged_after_s(*each) for each in pairwise(changes)]
    worst = 0.0
    for change_s, until_s in pairwise(changes):
        begin_s = change_s + settled_s
        while begin_s + WINDOW_S <= until_s:
            worst = max(worst, comparison.worst_error(begin_s, begin_s + WINDOW_S))
            begin_s += STEP_S
    return converged, worst


def row(thread_s: int, lookahead_s: int, *, alike: bool) -> list[str]:
    """Returns one line of the table."""
    fairness = Fairness(usage_measure="slots", lookahead_ms=lookahead_s * 1_000)
    set_up = one_after_another(thread_s * 1_000, fairness, alike=alike)
    converged, worst = measure(set_up, 60 + 3 * thread_s)
    times = ["-" if each is None else f"{each:.0f} s" for each in converged]
    return [f"{thread_s} s", f"{lookahead_s} s", *times, f"{worst:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", default="10,60,120", help="mean durations, in seconds")
    parser.add_argument("--lookahead", default="0,15,30,60,120", help="in seconds")
    parser.add_argument("--alike", action="store_true", help="all threads have the same duration")
    args = parser.parse_args()
    rows = [
        row(int(thread_s), int(lookahead_s), alike=args.alike)
        for thread_s in args.threads.split(",")
        for lookahead_s in args.lookahead.split(",")
    ]
    headings = ["thread duration", "lookahead", "MED1 begins", "DEFAULT2 begins", "DEFAULT2 ends"]
    print(table_text([*headings, "largest error later"], rows))


if __name__ == "__main__":
    main()
