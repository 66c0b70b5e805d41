"""`python -m tests.chaos.batch`: runs a batch on real daemons while they are killed at random.

It kills the runner, the resource manager and executors. Every thread must have one result and its
output, and its command must have completed exactly once. A second run is allowed only after the
loss of an executor. The seed determines the sequence of kills, but not their effect. Exits with 1
if a check failed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import finegrain_client as fg
from tests.e2e.batches import Batch
from tests.e2e.driving import Daemons, unique

KINDS = ("runner", "runner", "manager", "executor", "executor")


class Chaos:
    """The daemons, the batch, and the number of kills of each kind."""

    def __init__(self, seed: int, threads: int, home: Path) -> None:
        self.random = random.Random(seed)
        self.daemons = Daemons(home)
        self.kills = Counter[str]()
        self.names = [unique("batch-chaos") for _ in range(2)]
        self.executors = [self.daemons.executor(name) for name in self.names]
        self.batch = Batch(home, self.daemons.cli.environment(), threads)

    def run(self, patience_s: float) -> None:
        """Kills processes until the batch is done."""
        self.daemons.manager.start()
        self.daemons.manager.endpoint()
        for each in self.executors:
            each.start()
        self.daemons.await_executors(*self.names)
        self.runner = self.batch.start()
        end = time.monotonic() + patience_s
        while self.batch.done < self.batch.threads and time.monotonic() < end:
            time.sleep(self.random.uniform(0.2, 2.5))
            self.kill(self.random.choice(KINDS))
        self.runner.wait(90)
        if self.batch.done < self.batch.threads:
            self.batch.start().wait(90)

    def kill(self, kind: str) -> None:
        """Kills one process of a kind, and starts it again."""
        self.kills[kind] += 1
        pause_s = self.random.choice([0, 0, 0.5])
        if kind == "runner":
            self.runner.kill()
            self.runner.wait()
            time.sleep(pause_s)
            self.runner = self.batch.start()
            return
        daemon = self.daemons.manager
        if kind == "executor":
            daemon, pause_s = self.random.choice(self.executors), 0
        daemon.kill()
        time.sleep(pause_s)
        daemon.start()

    def judge(self) -> list[str]:
        """Returns what was wrong."""
        ran = self.batch.check()  # raises if a thread has no result or no output
        twice = sorted(thread for thread, times in ran.items() if times > 1)
        with self.daemons.cli.client() as cluster:
            events = list(cluster.events(newest=1000))
        lost = sum(each.kind == "executor_lost" for each in events)
        excused = 5 * lost  # an executor has 5 slots here
        results = list(fg.batch.read_thread_results(self.batch.state_file))
        print(f"killed: {dict(self.kills)}; {len(results)} threads, one result each;")
        print(f"executors counted as lost: {lost}; ran twice: {len(twice)}")
        return [f"threads {twice} ran twice"] if len(twice) > excused else []


def main() -> int:
    """Reads the command line, and runs once."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.batch", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--threads", type=int, default=300)
    parser.add_argument("--patience", type=float, default=240, help="seconds of kills at most")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    home = Path(tempfile.mkdtemp(prefix="fg-chaos-"))
    chaos = Chaos(options.seed, options.threads, home)
    try:
        chaos.run(options.patience)
        wrong = chaos.judge()
    finally:
        chaos.daemons.clean_up()
    for each in wrong:
        print(each)
    if not wrong:
        shutil.rmtree(home)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
