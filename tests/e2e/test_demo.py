"""`./dev demo`: a real job on a small cluster. At the end, no capacity is booked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.driving import Cli, Outcome, finish, python

BROKEN = """
import sys
from collections import Counter
from finegrain_cli.demo import __main__ as demo, wordcount
wordcount.count_words = lambda paths: Counter(surprise=1)
sys.exit(demo.main())
"""


def _run(home: Path, *command: str) -> Outcome:
    process = subprocess.Popen(
        command, env=Cli(home).environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    return finish(process, 300)


@pytest.fixture(scope="module")
def demo(home: Path) -> Outcome:
    """How the demo ended."""
    return _run(home, sys.executable, "-m", "finegrain_cli.demo")


@pytest.mark.quick
def test_it_ends_well_with_books_at_zero(demo: Outcome) -> None:
    assert demo.code == 0, demo.text + demo.stderr
    assert "nothing is booked any more, and no process or cgroup is left" in demo.text


@pytest.mark.quick
def test_it_shows_what_the_cluster_can_do(demo: Outcome) -> None:
    text = demo.stderr + demo.text
    for words in (
        "carved 16 slots of 16 sizes",
        "WAITING_CAPACITY",
        "smallest changes",
        "drained",
        "two slots share gpu",
        "a NIC near them",
    ):
        assert words in text
    report = text[text.index("TASK ") :].splitlines()
    assert report[0].split() == [
        "TASK",
        "EXECUTOR",
        "CPU",
        "MEMORY",
        "PEAK",
        "CPU",
        "TIME",
        "ENDED",
    ]
    assert sum(line.startswith("map ") and line.endswith(" ok") for line in report) == 16
    assert sum(line.startswith("reduce ") and line.endswith(" ok") for line in report) == 3


@pytest.mark.quick
def test_it_shows_a_slot_with_a_cpu_of_its_own(demo: Outcome) -> None:
    text = demo.stderr
    if len(os.sched_getaffinity(0)) < 2:
        assert "skipped the pinned slot" in text
        return
    told = re.search(
        r"a slot has the dedicated cpu (\d+) \(LSR\); its task sees cpu ([\d,-]+)", text
    )
    assert told is not None
    if "not enforced" not in text:
        assert told[1] == told[2]
    assert "NUMA node" in text[told.end() :]


@pytest.mark.needs("cgroup-v1")
@pytest.mark.quick
def test_it_shows_a_memory_limit_that_holds(demo: Outcome) -> None:
    assert "used all memory of its slot" in demo.stderr


def test_any_mismatch_is_an_exit_code(home: Path) -> None:
    outcome = _run(home, *python(BROKEN))
    assert outcome.code == 1
    assert "1 mismatches" in outcome.text
    assert "the word counts of the cluster differ from those of a single process" in outcome.text
