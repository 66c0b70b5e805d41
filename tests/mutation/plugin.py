"""The pytest plugin of one run: selects and orders the tests, and reports progress."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.mutation.reach import Marks


class Chosen:
    """Runs the tests of `order` only, in that order (None: all of them), and reports to a pipe.

    Each line of the pipe is a JSON object: {"begun": NAME}, or {"done": NAME, "seconds": S,
    "outcome": "passed" | "failed" | "skipped", "marks": [[FILE, LINE], ...]}.
    """

    def __init__(
        self, pipe: int, order: list[str] | None, examples: int, marks: Marks | None
    ) -> None:
        self._pipe, self._marks = pipe, marks
        self._order = None if order is None else {name: at for at, name in enumerate(order)}
        self._examples = examples
        self._outcome = "passed"

    def pytest_configure(self, config: pytest.Config) -> None:
        """Limits the examples of properties, makes them the same in every run, and saves none."""
        phases = (Phase.explicit, Phase.generate)  # without shrinking: a failure need not be small
        settings.register_profile(
            "mutation",
            deadline=None,
            database=None,
            derandomize=True,
            phases=phases,
            report_multiple_bugs=False,
        )
        settings.load_profile("mutation")
        most, declared = self._examples, vars(settings)["max_examples"].fget
        # A property on the class, because tests set a number themselves.
        fewer = property(lambda given: min(declared(given), most))
        type.__setattr__(settings, "max_examples", fewer)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keeps the chosen tests, in the given order."""
        if (order := self._order) is not None:
            items[:] = [item for item in items if item.nodeid in order]
            items.sort(key=lambda item: order[item.nodeid])

    def _tell(self, **what: Any) -> None:
        os.write(self._pipe, json.dumps(what).encode() + b"\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Reports the start and the end of a test."""
        if self._marks:
            self._marks.take()
        self._outcome, begun = "passed", time.monotonic()
        self._tell(begun=item.nodeid)
        result = yield
        marks = self._marks.take() if self._marks else []
        seconds = time.monotonic() - begun
        self._tell(done=item.nodeid, seconds=seconds, outcome=self._outcome, marks=marks)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the worst outcome of set-up, call and tear-down."""
        if report.failed or (report.skipped and self._outcome == "passed"):
            self._outcome = report.outcome
