"""`./dev mutate PATH`: measures which changes to the code the tests notice.

Changes one place of the code at a time in a copy of the checkout and runs the tests that reach it,
the quickest first. A mutant that no test notices is printed as a diff: it needs a test, or does not
matter.

Example: ./dev mutate resource_manager/engine --sample 200 --seed 1
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from pathlib import Path

from tests.mutation.mutants import Place, draw, places, source_files
from tests.mutation.reach import Reach
from tests.mutation.runs import Options, Verdict, folders_of_tests, judge_all, reach_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".mutation"  # not tracked: which lines tests reach, and reports


def main() -> int:
    """Returns 0, or 1 if the score is below --fail-under."""
    given = _parser().parse_args()
    # so that copies are removed then, too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    path = str(given.path).rstrip("/")
    if not (ROOT / path).exists():
        raise SystemExit(f"{path}: no such file or folder in the checkout")
    options = Options(
        ROOT,
        path,
        given.tests or folders_of_tests(ROOT, path),
        limit_s=given.limit,
        examples=given.examples,
        jobs=given.jobs,
    )
    reach = reach_of(options, FOLDER)
    found = [each for file in source_files(ROOT, path) for each in _places(file)]
    reached = [each for each in found if reach.reaches(each.path, each.statement)]
    mutants = draw(reached, given.sample or len(reached), given.seed)
    print(_introduction(options, reach, len(found), len(reached), len(mutants)), flush=True)
    report = FOLDER / f"{path.replace('/', '-')}-{given.seed}.jsonl"
    with report.open("w") as file:

        def tell(verdict: Verdict) -> None:
            file.write(json.dumps(verdict.record()) + "\n")
            file.flush()
            if verdict.survived:
                print(_shown(verdict), flush=True)

        verdicts = judge_all(mutants, reach, options, tell)
    score = _score(verdicts)
    print(_table(verdicts))
    print(f"score {score:.1f} % of {len(verdicts)}; every verdict: {report.relative_to(ROOT)}")
    return 1 if score < given.fail_under else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev mutate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", help="file or folder to mutate, relative to the checkout")
    parser.add_argument("--sample", type=int, metavar="N", help="draw N places (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the sample (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument(
        "--tests", nargs="+", metavar="PATH", help="tests to run (default: those beside the code)"
    )
    parser.add_argument(
        "--limit", type=float, default=30.0, help="seconds for each mutant (default: 30)"
    )
    parser.add_argument(
        "--examples", type=int, default=20, help="examples of a property at most (default: 20)"
    )
    parser.add_argument(
        "--fail-under", type=float, default=0.0, metavar="PERCENT", help="exit with 1 below it"
    )
    return parser


def _places(path: str) -> list[Place]:
    return places(path, (ROOT / path).read_text())


def _introduction(options: Options, reach: Reach, found: int, reached: int, drawn: int) -> str:
    tests = f"{len(reach.seconds)} tests of {', '.join(options.tests)}"
    counts = f"{options.path}: {found} places, {reached} reached by {tests}; {drawn} drawn"
    failed = [f"left out, because it fails without a mutant: {name}" for name in reach.failed]
    return "\n".join([counts, *failed])


def _shown(verdict: Verdict) -> str:
    tests = f"{verdict.ran} of {verdict.reaching} tests run"
    return f"\nsurvived: {verdict.mutant.where} ({tests})\n{verdict.mutant.diff()}"


def _score(verdicts: list[Verdict]) -> float:
    killed = sum(not verdict.survived for verdict in verdicts)
    return 100.0 * killed / len(verdicts) if verdicts else 100.0


def _table(verdicts: list[Verdict]) -> str:
    """Returns the results for each operator, as a table."""
    results = ("killed", "hung", "survived")
    counts = Counter((verdict.mutant.place.operator, verdict.result) for verdict in verdicts)
    counts.update({("all", each): sum(v.result == each for v in verdicts) for each in results})
    operators = [*sorted({operator for operator, _ in counts} - {"all"}), "all"]
    head = f"{'operator':36}" + "".join(f"{each:>10}" for each in results)
    rows = (f"{o:36}" + "".join(f"{counts[o, each]:10}" for each in results) for o in operators)
    return "\n".join(["", head, *rows])


if __name__ == "__main__":
    sys.exit(main())
