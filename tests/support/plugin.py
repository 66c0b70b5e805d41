"""Pytest plugin: order of the tests, exclusive tests, and tests that are left out.

- `needs(*components)`: without a component the test is left out and listed with the remedy. With
  CI=true every test that is left out, for any reason, is a failure.
- `alone`: measures time or limits of real processes; runs last, while no other test runs.
- `slow`: the test takes seconds. It starts before the others, so that it is not the last test of a
  worker.
- `full`: starts real processes or is a long property; only `./dev test --all` runs it. All of
  tests/e2e is `full`, except tests marked `quick`.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Generator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.components import COMPONENTS, reason_missing
from tests.support.run_guard import guard_run

LEFT_OUT = "left_out"
LOCK = pytest.StashKey[Path]()


def in_ci() -> bool:
    """Returns True if tests that would be left out must fail."""
    return os.environ.get("CI") == "true"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--all`: run also `full` tests, and every property with all of its examples."""
    parser.addoption("--all", action="store_true", dest="all_tests", help="also run `full` tests")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers, and makes Ctrl-C testable even if the shell ignores SIGINT for us."""
    if not hasattr(config, "workerinput"):  # a parallel worker is guarded with its controller
        _guard(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for line in (
        "needs(*components): names of tests/support/components.py the test cannot do without",
        "alone: no other test may run at the same time",
        "slow: takes seconds rather than milliseconds",
        "full: only ./dev test --all (pytest --all) runs it",
        "quick: runs without --all although it lies in tests/e2e",
    ):
        config.addinivalue_line("markers", line)


def _guard(config: pytest.Config) -> None:
    """Guards the run; the guard keeps the user's standard output and error, uncaptured."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        guard_run()


def _needed(item: pytest.Item) -> list[str]:
    return [str(name) for mark in item.iter_markers("needs") for name in mark.args]


def _is_full(item: pytest.Item) -> bool:
    if item.get_closest_marker("full"):
        return True
    return "e2e" in item.path.parts and item.get_closest_marker("quick") is None


def _rank(item: pytest.Item) -> int:
    if item.get_closest_marker("alone"):
        return 2
    return 0 if item.get_closest_marker("slow") or _is_full(item) else 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects `full` tests without `--all`; sorts long tests first and `alone` tests last."""
    if not config.getoption("all_tests"):
        config.hook.pytest_deselected(items=[item for item in items if _is_full(item)])
        items[:] = [item for item in items if not _is_full(item)]
    items.sort(key=_rank)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips the test if a component is missing."""
    for name in _needed(item):
        if name not in COMPONENTS:
            pytest.fail(f"nobody declared the component {name!r}; known: {', '.join(COMPONENTS)}")
        if reason := reason_missing(name):
            item.user_properties.append((LEFT_OUT, name))
            pytest.skip(f"needs {name}: {reason}; to get it: {COMPONENTS[name].remedy}")


def _fail_what_was_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and in_ci() and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"left out, which is a failure with CI=true: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skipped test into a failure with CI=true."""
    report = yield
    _fail_what_was_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turns a skipped module into a failure with CI=true."""
    report = yield
    _fail_what_was_skipped(report)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives all parallel workers of this run the same lock file."""
    config: pytest.Config = node.config
    if LOCK not in config.stash:
        handle, path = tempfile.mkstemp(prefix="finegrain-tests-", suffix=".lock")
        os.close(handle)
        config.stash[LOCK] = Path(path)
        config.add_cleanup(lambda: config.stash[LOCK].unlink(missing_ok=True))
    node.workerinput["lock"] = str(config.stash[LOCK])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Among parallel workers, locks exclusively for an `alone` test and shared for all others."""
    workerinput = getattr(item.config, "workerinput", None)
    if workerinput is None:
        return (yield)
    kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with open(workerinput["lock"], "a") as lock:
        fcntl.flock(lock, kind)
        return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the missing components. For each: how many tests needed it, and how to get it."""
    counts = Counter(
        name
        for outcome in ("skipped", "failed", "error")
        for report in terminalreporter.stats.get(outcome, ())
        for key, name in getattr(report, "user_properties", ())
        if key == LEFT_OUT
    )
    if not counts:
        return
    terminalreporter.section("left out")
    for name, count in sorted(counts.items()):
        what = "1 test needs" if count == 1 else f"{count} tests need"
        terminalreporter.write_line(f"{what} {name}; to get it: {COMPONENTS[name].remedy}")
