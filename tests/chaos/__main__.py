"""`./dev chaos`: runs real daemons under load, and kills, stops, cuts off and slows them.

Prints the faults as they happen and a verdict; exits with 1 if a check failed.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from types import FrameType

from tests.chaos.cluster import Shape
from tests.chaos.faults import KINDS
from tests.chaos.network import enter_own_network, in_own_network
from tests.chaos.run import Run, Settings
from tests.support.components import use_project_tools


def parse(arguments: list[str]) -> Settings:
    """Returns the settings of the command line."""
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    parser.add_argument("--cycles", type=int, default=20, help="faults in all (default: 20)")
    words = ", ".join(KINDS)
    parser.add_argument("--faults", default="rm", help=f"of {words}, with commas (default: rm)")
    parser.add_argument("--database", default="sqlite", choices=("sqlite", "postgresql"))
    parser.add_argument("--standby", action="store_true", help="two resource managers")
    parser.add_argument("--network", action="store_true", help="namespaces, also without cuts")
    parser.add_argument("--executors", type=int, default=3)
    parser.add_argument("--masters", type=int, default=3)
    parser.add_argument("--brief", action="store_true", help="short jobs, stops and cuts")
    options = parser.parse_args(arguments)
    groups = tuple(each for each in options.faults.split(",") if each)
    for group in groups:
        if group not in KINDS:
            parser.error(f"--faults {group}: known are {words}")
    database = "postgresql" if "database" in groups else options.database
    shape = Shape(
        managers=2 if options.standby else 1,
        executors=options.executors,
        masters=options.masters,
        database=database,
        network=options.network or "network" in groups,
        job_s_max=5.0 if options.brief else 25.0,
    )
    length_s_max = 2.0 if options.brief else 20.0
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    return Settings(seed, options.cycles, groups, shape, length_s_max, say)


def say(line: str) -> None:
    """Prints a line immediately."""
    print(line, flush=True)


def break_off(_number: int, _frame: FrameType | None) -> None:
    """Ends the run and everything that it started; a second signal has no further effect."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    """Returns 0 if all checks passed."""
    settings = parse(sys.argv[1:])
    if settings.shape.network and not in_own_network():
        enter_own_network("tests.chaos", [*sys.argv[1:], "--seed", str(settings.seed)])
    use_project_tools()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, break_off)
    verdict = Run(settings).to_the_end()
    print(verdict.summary())
    if not verdict.wrong:
        print(f"nothing was lost, nothing came twice (seed {settings.seed})")
        return 0
    print(f"\nWRONG (seed {settings.seed}):")
    for line in verdict.wrong[:50]:
        print(f"  {line}")
    if len(verdict.wrong) > 50:
        print(f"  ... and {len(verdict.wrong) - 50} more")
    print(f"logs, journals and plan: {verdict.folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
