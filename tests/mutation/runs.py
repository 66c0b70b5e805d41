"""Finds which lines the tests reach, and runs them against mutants."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tests.mutation.mutants import Mutant, source_files
from tests.mutation.reach import Reach, lines_of_import, mark_sources
from tests.mutation.server import Outcome, Request
from tests.mutation.tree import Copy, copy_of, digest

# In addition to tests/PATH.
MORE_TESTS = {"resource_manager/engine": ["tests/scenarios"]}

# First, a mutant is tested by the tests of `FILES_FIRST` files that take at most `QUICK_S`.
FILES_FIRST, QUICK_S = 3, 0.5


@dataclass(frozen=True)
class Options:
    """Options of one invocation of the tool."""

    root: Path
    path: str
    tests: list[str]
    limit_s: float = 30.0
    hang_s: float = 5.0
    examples: int = 20
    jobs: int = 1


@dataclass(frozen=True)
class Verdict:
    """The verdict on a mutant: `killed`, `hung` (counts as killed) or `survived`.

    `test` is the test that noticed; `ran` of `reaching` tests were run before the limit.
    """

    mutant: Mutant
    result: str
    test: str
    ran: int
    reaching: int

    @property
    def survived(self) -> bool:
        return self.result == "survived"

    def record(self) -> dict[str, object]:
        """Returns the verdict for a report."""
        place = self.mutant.place
        return {
            "where": self.mutant.where,
            "operator": place.operator,
            "result": self.result,
            "test": self.test,
            "ran": self.ran,
            "reaching": self.reaching,
            "diff": self.mutant.diff(),
        }


def folders_of_tests(root: Path, path: str) -> list[str]:
    """Returns the folders whose tests are beside `path` or the nearest folder above it."""
    for folder in [Path(path), *Path(path).parents]:
        if folder != Path() and (root / "tests" / folder).is_dir():
            return [f"tests/{folder}", *MORE_TESTS.get(str(folder), [])]
    raise SystemExit(f"no folder of tests for {path}; name one with --tests")


def reach_of(options: Options, cache: Path) -> Reach:
    """Returns which lines each test reaches; from a cache if the checkout is unchanged."""
    more = json.dumps([options.path, options.tests, options.examples])
    file = cache / f"reach-{digest(options.root, more)}.json"
    if file.exists():
        return Reach.decode(file.read_text())
    reach = find_reach(options)
    cache.mkdir(exist_ok=True)
    file.write_text(reach.encode())
    return reach


def find_reach(options: Options) -> Reach:
    """Runs all tests once over marked sources."""
    reach = Reach()
    with copy_of(options.root, options.tests) as copy:
        marks = copy.root / "marks"
        files = source_files(copy.root, options.path)
        reach.imported = {each: lines_of_import((copy.root / each).read_text()) for each in files}
        ids = mark_sources(copy.root, files, marks)
        log = copy.root / "output.txt"
        outcome = copy.run(
            Request(
                options.tests,
                examples=options.examples,
                marks=str(marks),
                ids=ids,
                output=str(log),
            )
        )
        if not outcome.ran:
            raise SystemExit(f"no test could be run:\n{log.read_text()[-4000:]}")
    for path, line in ids:
        reach.lines.setdefault(path, {}).setdefault(line, [])
    for told in outcome.done:
        if told["outcome"] == "failed":
            reach.failed.append(told["done"])
        elif told["outcome"] == "passed":
            reach.seconds[told["done"]] = told["seconds"]
            for path, line in told["marks"]:
                reach.lines[path][line].append(told["done"])
    return reach


def judge(copy: Copy, mutant: Mutant, reach: Reach, options: Options) -> Verdict:
    """Runs the tests that reach a mutant until one fails or hangs, or the time is over."""
    place = mutant.place
    order = reach.tests_of(place.path, place.statement)
    ran, left_s, outcome = 0, options.limit_s, Outcome("passed")
    with copy.changed(place.path, mutant.after):
        for wave in _waves(order, reach.seconds):
            tests = wave
            while tests and left_s > 0 and outcome.result == "passed":
                request = _request(tests, reach, replace(options, limit_s=left_s))
                outcome = copy.run(request)
                ran, left_s = ran + outcome.ran, left_s - outcome.seconds
                if outcome.result not in ("failed", "hung") or _again(copy, request, outcome):
                    break
                # It failed for a reason other than the mutant: a busy machine.
                tests = tests[tests.index(outcome.test) + 1 :]
                outcome = Outcome("passed")
    result = {"failed": "killed", "hung": "hung"}.get(outcome.result, "survived")
    return Verdict(mutant, result, outcome.test, ran, len(order))


def _waves(order: list[str], seconds: dict[str, float]) -> list[list[str]]:
    """Splits the tests into two runs, because the import of all their files takes seconds.

    The first run has the quick tests of the files with most of them, which notice most mutants.
    """
    quick = [name for name in order if seconds[name] <= QUICK_S]
    files = Counter(_file(name) for name in quick).most_common(FILES_FIRST)
    first = {file for file, _ in files}
    early = [name for name in quick if _file(name) in first]
    early_names = set(early)
    return [early, [name for name in order if name not in early_names]]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _request(order: list[str], reach: Reach, options: Options) -> Request:
    return Request(
        sorted({_file(name) for name in order}),
        order,
        {name: reach.seconds[name] for name in order},
        limit_s=options.limit_s,
        hang_s=options.hang_s,
        examples=options.examples,
    )


def _again(copy: Copy, request: Request, outcome: Outcome) -> bool:
    """Returns whether the test that noticed the mutant notices it again when run alone."""
    if outcome.test not in request.seconds:
        return True  # the file cannot even be imported
    paths = [_file(outcome.test)]
    second = copy.run(replace(request, paths=paths, order=[outcome.test]))
    return second.result != "passed"


def judge_all(
    mutants: list[Mutant], reach: Reach, options: Options, tell: Callable[[Verdict], None]
) -> list[Verdict]:
    """Judges the mutants in `options.jobs` copies; calls `tell` for each, one at a time."""
    waiting: queue.SimpleQueue[Mutant | None] = queue.SimpleQueue()
    for each in [*mutants, *[None] * options.jobs]:
        waiting.put(each)
    verdicts: list[Verdict] = []
    lock = threading.Lock()

    def work(copy: Copy) -> None:
        while mutant := waiting.get():
            verdict = judge(copy, mutant, reach, options)
            with lock:
                verdicts.append(verdict)
                tell(verdict)

    with ExitStack() as stack:
        copies = [
            stack.enter_context(copy_of(options.root, options.tests)) for _ in range(options.jobs)
        ]
        threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    order = {id(mutant): at for at, mutant in enumerate(mutants)}
    return sorted(verdicts, key=lambda verdict: order[id(verdict.mutant)])
