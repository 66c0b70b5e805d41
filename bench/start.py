"""Measures the CPU time that short commands use, from start to end of the process.

Needs a cluster that the same user runs with `finegrain up`, and a job: `finegrain run -- true`. On
a busy machine, the smallest of many runs is the figure to compare.
"""

from __future__ import annotations

import os
import resource
import shlex
import statistics
import subprocess
import sys
import time

from finegrain_cli.command_tree import COMPLETE_VARIABLE

RUNS = 10
COMMANDS = (
    "version",
    "status",
    "executors",
    "slots",
    "requests",
    "jobs",
    "explain last",
    "run -- true",
)
COMPLETION = {
    COMPLETE_VARIABLE: "complete_bash",
    "COMP_WORDS": "finegrain drain ",
    "COMP_CWORD": "2",
}


def used(arguments: list[str], variables: dict[str, str]) -> tuple[float, float]:
    """Returns the CPU time and the duration of one command, in seconds."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "finegrain_cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | variables,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, time.monotonic() - started


def main() -> None:
    """Prints a row per command."""
    print(f"| command, {RUNS} runs each | cpu, smallest | cpu, median | duration, smallest |")
    print("| --- | --- | --- | --- |")
    for name, arguments, variables in (
        *((each, shlex.split(each), {}) for each in COMMANDS),
        ("completion of `drain `", [], COMPLETION),
    ):
        runs = [used(arguments, variables) for _ in range(RUNS)]
        cpu, duration = zip(*runs, strict=True)
        cells = (min(cpu), statistics.median(cpu), min(duration))
        print(f"| {name} | {' | '.join(f'{each:.3f} s' for each in cells)} |")


if __name__ == "__main__":
    main()
