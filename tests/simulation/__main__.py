"""`./dev simulate --seeds N`: simulates a cluster once per seed, and shrinks each failing run.

`--hosts 10000` simulates one large cluster. With enough seeds, the run also fails if a kind of
fault never happened.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from random import Random

from tests.simulation.faults import FAULTS
from tests.simulation.job_master import EARLY, PRIORITIES, REVOCABLE, USERS
from tests.simulation.shrink import shrink
from tests.simulation.world import (
    ALL_WISHES,
    WITH_CPUS,
    WITH_DEVICE_SHARES,
    WITH_DEVICES,
    WITH_TIMES,
    Failed,
    Plan,
    Result,
    World,
)

SEEDS_FOR_ALL_KINDS = 50

EARLY_SHARE = 0.2
"""Share of the seeds in which job masters first request what no executor could host."""

PRIORITIES_SHARE = 0.3
"""Share of the seeds in which requests and jobs have priorities."""

REVOCABLE_SHARE = 0.3
"""Share of the seeds in which slots may be revocable."""


def main() -> int:
    """Returns 0 if all seeds passed."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--hosts", type=int, help="hosts (default: 3 to 20, as the seed draws)")
    parser.add_argument("--failures", type=int, default=3, help="stop after so many (default: 3)")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for shorter stories")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, for adding up")
    options = parser.parse_args()
    results: list[Result] = []
    failed: list[int] = []
    begun = time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        try:
            wishes = _wishes(seed)
            # The limits of users may refuse most of the jobs.
            plan = Plan(seed, hosts=options.hosts, wishes=wishes, demands_work=USERS not in wishes)
            results.append(World(plan).run())
        except Failed as error:
            failed.append(seed)
            print(error if options.no_shrink else _shortest(error), end="\n\n", flush=True)
            if len(failed) >= options.failures:
                break
    figures = _figures(results, failed, time.process_time() - begun)
    print(json.dumps(figures) if options.json else _shown(figures))
    never = FAULTS.keys() - {kind for each in results for kind in each.faults}
    if len(results) >= SEEDS_FOR_ALL_KINDS and never:
        print(f"never struck: {', '.join(sorted(never))}")
        return 1
    return 1 if failed else 0


def _wishes(seed: int) -> frozenset[str]:
    profiles = (ALL_WISHES, WITH_CPUS, WITH_TIMES, WITH_DEVICES)
    # Every second seed with devices has a storm of them.
    wishes = WITH_DEVICE_SHARES if seed % 8 == 7 else profiles[seed % 4]
    early = Random(f"{seed}/wishes").random() < EARLY_SHARE
    if Random(f"{seed}/priorities").random() < PRIORITIES_SHARE:
        wishes |= {PRIORITIES}
    if Random(f"{seed}/revocable").random() < REVOCABLE_SHARE:
        wishes |= {REVOCABLE}
    return wishes | {EARLY} if early else wishes


def _shortest(error: Failed) -> str:
    """Returns the log of the smallest run that fails in the same way."""
    short = shrink(error)
    return f"{short}\nwhole seed: {str(error).splitlines()[0]}\nrepeat: World({short.plan}).run()"


def _figures(results: list[Result], failed: list[int], seconds: float) -> dict[str, object]:
    faults, messages, fair = Counter[str](), Counter[str](), Counter[str]()
    for each in results:
        faults += each.faults
        messages += each.messages
        fair += each.fair
    return {
        "passed": len(results),
        "failed": failed,
        "cpu_s": round(seconds, 1),
        "events": sum(each.events for each in results),
        "batches": sum(each.batches for each in results),
        "grants": sum(each.grants for each in results),
        "resizes": sum(each.resizes for each in results),
        "gangs": sum(each.gangs for each in results),
        "executors_started": sum(each.started for each in results),
        "hosts_max": max((each.hosts for each in results), default=0),
        "fair shares": dict(sorted(fair.items())),
        "faults": dict(faults.most_common()),
        "messages": dict(messages.most_common()),
    }


def _shown(figures: dict[str, object]) -> str:
    events, cpu_s = figures["events"], figures["cpu_s"]
    assert isinstance(events, int)
    assert isinstance(cpu_s, float)
    lines = [
        f"{figures['passed']} seeds passed, failed: {figures['failed'] or 'none'}",
        f"at most {figures['hosts_max']} hosts, {events} events",
        f"{cpu_s} s of CPU, {events / max(0.1, cpu_s):.0f} events in each",
        f"{figures['batches']} batches, {figures['grants']} grants, {figures['gangs']} gangs",
        f"{figures['resizes']} changes of size, {figures['executors_started']} executors started",
    ]
    shares = figures["fair shares"]
    assert isinstance(shares, dict)
    lines.append(", ".join(f"{count} {what}" for what, count in shares.items()))
    for name in ("faults", "messages"):
        counts = figures[name]
        assert isinstance(counts, dict)
        total = sum(counts.values())
        lines.append(f"{total} {name}: " + ", ".join(f"{k} {v}" for k, v in counts.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
