"""`./dev power-cuts --cuts N`: cuts the power of whole daemons, and checks what survives.

Four machines run one after the other: a resource manager under load, first starts, the front of a
task executor, and its helper with supervisors and tasks. With `--synchronous normal` they sync less
than the product does: then the run must find losses in each, and fails.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine

from tests.e2e.driving import free_address
from tests.power_cuts.executor_cuts import ExecutorCuts
from tests.power_cuts.first_start import FirstStarts
from tests.power_cuts.machine import Machine, machine, what_is_missing
from tests.power_cuts.rm_cuts import RmCuts
from tests.power_cuts.supervisor_cuts import SupervisorCuts

Part = Callable[[Machine, argparse.Namespace], Coroutine[None, None, list[str]]]


async def cut_resource_manager(on: Machine, options: argparse.Namespace) -> list[str]:
    """Cuts a resource manager under load; returns what was lost."""
    run = RmCuts(on, free_address(), options.synchronous, options.seed)
    await run.run(options.cuts)
    counts = ", ".join(f"{number} {what}" for what, number in sorted(run.ledger.counts.items()))
    _say(f"resource manager ({options.synchronous}): {_of(on)}; {counts}")
    if not run.found and not run.ledger.counts["promises checked"]:
        return ["too little happened: not one promise could be checked"]
    return run.found


async def cut_first_starts(on: Machine, options: argparse.Namespace) -> list[str]:
    """Cuts first starts; returns what went wrong."""
    run = FirstStarts(on, free_address(), options.seed)
    await run.run(options.cuts)
    _say(f"first starts: {_of(on)}; {run.cut_before_ready} of them before it served")
    return run.found


async def cut_executor(on: Machine, options: argparse.Namespace) -> list[str]:
    """Cuts an executor under commands; returns what was forgotten."""
    run = ExecutorCuts(on, free_address(), options.synchronous, options.seed)
    await run.run(options.cuts)
    _say(
        f"executor ({options.synchronous}): {_of(on)}; {run.slots_acknowledged} slots "
        f"acknowledged, {run.slots_told_as_ended} told as ended after a cut, "
        f"{run.tasks_acknowledged} tasks acknowledged, {run.epochs} epochs "
        f"obeyed"
    )
    if not run.found and not run.slots_told_as_ended:
        return ["too little happened: no slot was there when the power went"]
    return run.found


async def cut_supervisor(on: Machine, options: argparse.Namespace) -> list[str]:
    """Cuts a helper while short tasks run; returns what was forgotten."""
    run = SupervisorCuts(on, options.synchronous, options.seed)
    await run.run(options.cuts)
    _say(
        f"supervisor ({options.synchronous}): {_of(on)}; {run.tasks_started} tasks started, "
        f"{run.ends_promised} ends reported, {run.ends_checked} of them checked after a cut"
    )
    if not run.found and not run.ends_checked:
        return ["too little happened: no end was reported when the power went"]
    return run.found


PARTS: dict[str, Part] = {
    "resource-manager": cut_resource_manager,
    "first-start": cut_first_starts,
    "executor": cut_executor,
    "supervisor": cut_supervisor,
}


def _of(on: Machine) -> str:
    return (
        f"{on.cuts} power cuts, {on.syncs} syncs, {on.sectors_lost} of "
        f"{on.sectors_lost + on.sectors_kept} unsynced sectors and {on.names_lost} names lost"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Returns 0 if nothing was lost, 2 if power cannot be cut here."""
    parser = argparse.ArgumentParser(prog="./dev power-cuts", description=__doc__)
    parser.add_argument("--cuts", type=int, default=20, help="of each machine (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of moments and of what survives")
    parser.add_argument("--only", choices=sorted(PARTS), help="one machine only")
    parser.add_argument(
        "--synchronous",
        choices=("full", "normal"),
        default="full",
        help="normal: resource manager and executor sync too little; has to fail",
    )
    options = parser.parse_args()
    if missing := what_is_missing():
        _say(missing)
        return 2
    names = [options.only] if options.only else list(PARTS)
    if options.synchronous == "normal":
        names = [name for name in names if name != "first-start"]
    begun = time.monotonic()
    found: list[str] = []
    for name in names:
        with machine(options.seed) as made:
            broken = asyncio.run(PARTS[name](made, options))
        for each in broken[:20]:
            _say(f"  BROKEN {each}")
        _say(f"{name}: {len(broken)} promises broken")
        found += broken
    _say(f"{len(found)} promises broken; {time.monotonic() - begun:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
