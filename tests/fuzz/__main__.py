"""`./dev fuzz`: attacks a real cluster with wrong calls and with garbage, and reports failures.

Every method of every port is called as every kind of member, with requests that are made from the
descriptors and then damaged. Exits with 1 if a server answered INTERNAL or UNKNOWN, wrote a
traceback, ended, or used more and more memory.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from tests.fuzz.run import attack
from tests.fuzz.targets import cluster_under_attack


def main(arguments: list[str]) -> int:
    """Runs the attack; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="default: 10")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, printed")
    options = parser.parse_args(arguments)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with cluster_under_attack() as targets:
        verdict = asyncio.run(attack(targets, options.minutes * 60, seed))
        print(verdict.text(), flush=True)
    return 1 if verdict.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
