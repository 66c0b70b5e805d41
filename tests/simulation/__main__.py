"""`./dev simulate --seeds N`: many lives of a cluster; prints the story of a seed that fails."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.world import Failed, Result, simulate


def main() -> int:
    """0 if all seeds passed."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many (default: 3)")
    options = parser.parse_args()
    results: list[Result] = []
    failed: list[int] = []
    begun = time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        try:
            results.append(simulate(seed))
        except Failed as error:
            failed.append(seed)
            print(f"{error}\n")
            if len(failed) >= options.failures:
                break
    seconds = max(0.001, time.process_time() - begun)
    events = sum(each.events for each in results)
    print(
        f"{len(results)} seeds passed, {len(failed)} failed {failed or ''}: {events} events"
        f" ({events / seconds:.0f}/s), {sum(r.batches for r in results)} batches,"
        f" {sum(r.grants for r in results)} grants, {sum(r.faults for r in results)} faults,"
        f" {sum(r.messages_hurt for r in results)} messages lost, repeated or late"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
