"""Tests the whole tool on a tiny package with known mutants."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation import server
from tests.mutation.mutants import Mutant, places
from tests.mutation.reach import Reach
from tests.mutation.runs import (
    Options,
    Verdict,
    _waves,
    find_reach,
    folders_of_tests,
    judge_all,
    reach_of,
)
from tests.mutation.tree import files_of
from tests.support.patience import PATIENCE_S

PRICES = '''"""Prices of a shop."""

from __future__ import annotations

LIMIT = 3


def price(count: int) -> int:
    """Returns the price of some."""
    if count > LIMIT:
        return count * 2
    return count


def in_stock(count: int) -> int:
    while count > 9:
        count -= 1
    return count


def never_called(count: int) -> int:
    return count + 1
'''

TESTS = """
import subprocess
import sys
from pathlib import Path

from shop.prices import in_stock, price

ROOT = Path(__file__).resolve().parents[2]


def test_one_has_its_price():
    assert price(1) == 1


def test_many_cost_double():
    assert price(5) == 10


def test_a_child_process_knows_the_stock():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    code += "from shop.prices import in_stock; sys.exit(in_stock(11) - 2)"
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code]).returncode == 7


def test_that_fails_without_a_mutant():
    assert price(1) == 2
"""

EITHER = {"one_has_its_price", "many_cost_double"}
EXPECTED = {
    "LIMIT = None": ("killed", EITHER),
    "LIMIT = 4": ("survived", {""}),
    "if count >= LIMIT:": ("survived", {""}),  # no test uses the value three
    "return count / 2": ("killed", {"many_cost_double"}),
    "while count > 10:": ("killed", {"a_child_process_knows_the_stock"}),
    "count += 1": ("hung", {"a_child_process_knows_the_stock"}),
}

pytestmark = pytest.mark.full  # it starts pytest many times


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    """A checkout with one package and its tests."""
    root = tmp_path_factory.mktemp("checkout")
    for name, text in {
        "shop/prices.py": PRICES,
        "tests/shop/test_prices.py": TESTS,
        "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Options(root, "shop", folders_of_tests(root, "shop"), hang_s=0.5)


@pytest.fixture(scope="module")
def reach(options: Options) -> Reach:
    return find_reach(options)


@pytest.fixture(scope="module")
def verdicts(options: Options, reach: Reach) -> dict[str, Verdict]:
    """Returns the verdicts on the mutants of `EXPECTED`, by the changed line."""
    found = places("shop/prices.py", PRICES)
    mutants = [place.mutant(change) for place in found for change in range(place.changes)]
    mutants = [mutant for mutant in mutants if _written(mutant) in EXPECTED]
    judged = judge_all(mutants, reach, options, lambda verdict: None)
    assert [verdict.mutant for verdict in judged] == mutants
    return {_written(verdict.mutant): verdict for verdict in judged}


def _written(mutant: Mutant) -> str:
    (line,) = [line for line in mutant.diff().splitlines() if line.startswith("+")]
    return line[1:].strip()


def names(tests: list[str]) -> set[str]:
    """Returns the names of tests without their files; "" if no test noticed."""
    return {test.rpartition("::test_")[2] for test in tests}


def test_lines_know_their_tests(reach: Reach) -> None:
    assert names(reach.tests_of("shop/prices.py", 10)) == EITHER
    assert names(reach.tests_of("shop/prices.py", 11)) == {"many_cost_double"}
    assert reach.tests_of("shop/prices.py", 22) == []
    assert [line for line in range(30) if reach.reaches("shop/prices.py", line)] == [
        line for line in range(30) if reach.tests_of("shop/prices.py", line)
    ]


def test_lines_that_a_child_process_runs_are_reached(reach: Reach) -> None:
    assert names(reach.tests_of("shop/prices.py", 17)) == {"a_child_process_knows_the_stock"}


def test_lines_that_only_the_import_runs_are_reached_by_all_tests_of_the_file(
    reach: Reach,
) -> None:
    all_three = {*EITHER, "a_child_process_knows_the_stock"}
    assert names(reach.tests_of("shop/prices.py", 5)) == all_three


def test_a_test_that_fails_without_a_mutant_is_not_asked(reach: Reach) -> None:
    assert names(reach.failed) == {"that_fails_without_a_mutant"}


def test_the_quickest_test_comes_first() -> None:
    lines = {"a.py": {1: ["slow", "quick"]}}
    reach = Reach(lines, seconds={"slow": 2.0, "quick": 0.1})
    assert reach.tests_of("a.py", 1) == ["quick", "slow"]


@pytest.mark.parametrize("written", EXPECTED)
def test_each_mutant_gets_its_verdict(verdicts: dict[str, Verdict], written: str) -> None:
    verdict = verdicts[written]
    result, by = EXPECTED[written]
    assert verdict.result == result
    assert names([verdict.test]) <= by


def test_quick_tests_of_the_files_with_most_of_them_come_first() -> None:
    quick = {f"{file}.py::test_{n}": 0.1 for file in "abcd" for n in range(3)}
    seconds = {**quick, "a.py::test_slow": 9.0, "e.py::test_rare": 0.1}
    early, late = _waves(list(seconds), seconds)
    assert len(early) == 9
    assert {name.partition("::")[0] for name in early} == {"a.py", "b.py", "c.py"}
    assert set(late) == seconds.keys() - set(early)
    assert "a.py::test_slow" in late


def test_the_checkout_stays_as_it_is(options: Options, verdicts: dict[str, Verdict]) -> None:
    assert (options.root / "shop/prices.py").read_text() == PRICES
    assert {Path(name).name for name in files_of(options.root)} == {
        "prices.py",
        "pytest.ini",
        "test_prices.py",
    }


def test_what_is_reached_is_found_once_for_the_same_checkout(
    options: Options, reach: Reach, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Options] = []

    def find_once(given: Options) -> Reach:
        runs.append(given)
        return reach

    monkeypatch.setattr("tests.mutation.runs.find_reach", find_once)
    assert [reach_of(options, tmp_path) for _ in range(3)] == [reach] * 3
    assert len(runs) == 1
    reach_of(replace(options, examples=2), tmp_path)
    assert len(runs) == 2


@pytest.mark.needs("root", "cgroup-v1")
def test_a_process_that_a_mutant_has_left_frozen_dies_with_the_run() -> None:
    group = server.FREEZER / f"mutate-{os.getpid()}"
    (group / "task").mkdir(parents=True)
    process = subprocess.Popen(["sleep", "600"])
    (group / "task/cgroup.procs").write_text(str(process.pid))
    (group / "freezer.state").write_text("FROZEN")
    process.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    server._thaw()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    (group / "task").rmdir()
    group.rmdir()
