"""Slots come and go for a long time. Measures how many requests the placement policies refuse
meanwhile, and how much capacity they strand.

    python -m bench.churn [--slots 10000] [--load 0.9] [--turnovers 3] [--seed 1]
        [--policy first-fit --policy best-fit --policy pack --policy spread --policy balanced]

Slots and hosts have the sizes of a real cluster. The durations of slots are distributed
exponentially. On average, the slots need the fraction `--load` of the scarcer resource. A request
for which no host has room is refused, and is not repeated. First, the number `--slots` of slots
arrives at once; then slots come and go. One turnover is the mean duration of a slot.

The benchmark prints a line for each policy at every half turnover. The line has the number of
slots, the fraction of arrivals that was refused since the previous line, the allocated capacity,
and the stranded capacity. Stranded capacity is the free cpu and memory of hosts where no size of
the trace fits. It also prints the CPU time of the placement per arrival. This module implements
`best-fit`, which compares all hosts and takes the host with the least sum of free fractions. The
other policies use the whole engine, with commands and answers.

The sizes of slots and hosts come from the Alibaba GPU cluster trace of 2023, without GPUs: the 24
most frequent requests (7,363 of 8,152 requests) and the six most frequent kinds of nodes (Q. Weng
et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent", USENIX ATC 2023).
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench.engine import AT, STRATEGIES, Bench
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import (
    JobRegistered,
    RequestsCancelled,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.model.settings import EngineSettings

JOB = "churn"

Amounts = npt.NDArray[np.int64]
"""Cpu and memory of each host."""


class Size(NamedTuple):
    """Cpu and memory of a slot or host, and how often this size occurs in the trace."""

    cpu_milli: int
    memory_mib: int
    frequency: int


SLOTS = tuple(
    Size(*each)
    for each in (
        *[(3152, 5600, 1592), (11300, 49152, 857), (11908, 47104, 778), (8000, 30517, 649)],
        *[(11400, 48128, 534), (12500, 57344, 364), (32000, 49152, 284), (18708, 64512, 255)],
        *[(9810, 41560, 195), (4000, 22888, 189), (4000, 15258, 182), (12000, 24576, 162)],
        *[(15700, 58368, 158), (4152, 10600, 152), (4000, 30517, 136), (15400, 51200, 120)],
        *[(16000, 32768, 110), (8000, 16384, 106), (4000, 24576, 104), (12000, 16384, 99)],
        *[(16500, 51200, 95), (14200, 58368, 93), (24200, 93184, 84), (11400, 77824, 65)],
    )
)
HOSTS = tuple(
    Size(*each)
    for each in (
        *[(96000, 393216, 596), (104000, 524288, 407), (32000, 262144, 129)],
        *[(16000, 122880, 107), (96000, 524288, 59), (32000, 131072, 51)],
    )
)


def mean(sizes: tuple[Size, ...]) -> tuple[float, float]:
    """Returns the mean cpu and memory."""
    total = sum(each.frequency for each in sizes)
    return (
        sum(each.cpu_milli * each.frequency for each in sizes) / total,
        sum(each.memory_mib * each.frequency for each in sizes) / total,
    )


def cluster_for(slots: int, load: float, seed: int) -> list[Size]:
    """Returns a cluster in which `slots` slots need the fraction `load` of the scarcer resource.
    Hosts are in random order.
    """
    scarcer = max(needed / there for needed, there in zip(mean(SLOTS), mean(HOSTS), strict=True))
    count = round(slots * scarcer / load)
    of_trace = sum(each.frequency for each in HOSTS)
    bounds = [
        round(count * part / of_trace) for part in accumulate(each.frequency for each in HOSTS)
    ]
    hosts = [
        size
        for size, low, high in zip(HOSTS, [0, *bounds], bounds, strict=False)
        for _ in range(high - low)
    ]
    random.Random(seed).shuffle(hosts)
    return hosts


class Policy(Protocol):
    """Chooses hosts. A host is a position in the list of hosts."""

    def place(self, name: str, size: Size) -> int | None:
        """Places a slot and returns its host; None: no host has room."""

    def release(self, name: str, size: Size, host: int) -> None:
        """Removes a slot."""


class BestFit:
    """Chooses the host with the least sum of its free fractions of cpu and memory."""

    def __init__(self, hosts: list[Size]) -> None:
        self._total = np.array([[each.cpu_milli, each.memory_mib] for each in hosts], dtype=float)
        self._free = self._total.copy()

    def place(self, name: str, size: Size) -> int | None:
        left = self._free - (size.cpu_milli, size.memory_mib)
        remains = np.where((left >= 0).all(axis=1), (left / self._total).sum(axis=1), np.inf)
        host = int(remains.argmin())
        if np.isinf(remains[host]):
            return None
        self._free[host] = left[host]
        return host

    def release(self, name: str, size: Size, host: int) -> None:
        self._free[host] += (size.cpu_milli, size.memory_mib)


class Engine(Bench):
    """Places with the whole engine, and with executors that accept every order at once."""

    def __init__(self, hosts: list[Size], settings: EngineSettings) -> None:
        super().__init__({"profiles": [], "hosts": None}, settings)
        self._profiles = {
            size: ResourceProfile(size.cpu_milli, size.memory_mib * MIB) for size in SLOTS
        }
        totals = (
            {"cpu_milli": each.cpu_milli, "memory_bytes": each.memory_mib * MIB} for each in hosts
        )
        default = self._profiles[SLOTS[0]]
        self.batch(*(self.registration(at, total, default) for at, total in enumerate(totals)))
        self.batch(JobRegistered(AT, JOB, JOB, "default", None, "s", "r"))

    def place(self, name: str, size: Size) -> int | None:
        spec = RequestSpec(name, self._profiles[size])
        effects = self.batch(RequestsSubmitted(AT, JOB, (spec,)))
        slot = self.state.slots.get((name, 1))
        if slot is None:
            self.batch(RequestsCancelled(AT, JOB, (name,)))
            return None
        host = slot.executor_id
        self.settle(effects)
        return int(host.removeprefix("host-"))

    def release(self, name: str, size: Size, host: int) -> None:
        self.settle(self.batch(SlotsReleased(AT, JOB, ((name, 0),))))


class Books:
    """Counts the free capacity of each host, in the same way for every policy."""

    def __init__(self, hosts: list[Size]) -> None:
        self.total = np.array([[each.cpu_milli, each.memory_mib] for each in hosts])
        self.free = self.total.copy()
        self._sizes = np.array([[each.cpu_milli, each.memory_mib] for each in SLOTS])

    def take(self, host: int, size: Size) -> None:
        """Books a slot.

        Raises:
            ValueError: the host has no room for the slot.
        """
        self.free[host] -= (size.cpu_milli, size.memory_mib)
        if (self.free[host] < 0).any():
            raise ValueError(f"host {host} has no room for {size}")

    def give_back(self, host: int, size: Size) -> None:
        """Removes a slot."""
        self.free[host] += (size.cpu_milli, size.memory_mib)

    def in_use(self) -> int:
        """Returns the number of hosts with at least one slot."""
        return int((self.free < self.total).any(axis=1).sum())

    def percent(self, amounts: Amounts) -> str:
        """Returns cpu and memory in percent of the cluster."""
        cpu, memory = 100 * amounts.sum(axis=0) / self.total.sum(axis=0)
        return f"{cpu:6.2f} {memory:6.2f}"

    def stranded(self) -> Amounts:
        """Returns the sum of the free capacity of hosts on which no size of the trace fits."""
        fits = np.any(np.all(self.free[:, None, :] >= self._sizes, axis=2), axis=1)
        return np.where(fits[:, np.newaxis], 0, self.free)


class Churn:
    """Runs arrivals and ends of slots under one policy. The unit of time is the mean duration of a
    slot.
    """

    def __init__(self, policy: Policy, hosts: list[Size], seed: int) -> None:
        self._policy = policy
        self._books = Books(hosts)
        self._random = random.Random(seed)
        self._weights = list(accumulate(each.frequency for each in SLOTS))
        self._running: list[tuple[str, Size, int]] = []
        self._shown = (0, 0)  # arrivals and refusals when the previous line was printed
        self.arrivals = 0
        self.refused = 0
        self.spent_s = 0.0  # CPU seconds spent on placing

    def run(self, slots: int, turnovers: float) -> None:
        """Fills the cluster with `slots`, then lets slots come and go for `turnovers`."""
        for _ in range(slots):
            self._arrive()
        now, shown_at = 0.0, 0.0
        while shown_at <= turnovers:
            rate = slots + len(self._running)
            now += self._random.expovariate(rate)
            if now >= shown_at:
                self._show(shown_at)
                shown_at += 0.5
            if self._random.random() * rate < slots:
                self._arrive()
            else:
                self._leave()

    def _arrive(self) -> None:
        (size,) = self._random.choices(SLOTS, cum_weights=self._weights)
        self.arrivals += 1
        name = f"slot-{self.arrivals}"
        started_s = time.process_time()
        host = self._policy.place(name, size)
        self.spent_s += time.process_time() - started_s
        if host is None:
            self.refused += 1
        else:
            self._books.take(host, size)
            self._running.append((name, size, host))

    def _leave(self) -> None:
        at = self._random.randrange(len(self._running))
        self._running[at], self._running[-1] = self._running[-1], self._running[at]
        name, size, host = self._running.pop()
        self._policy.release(name, size, host)
        self._books.give_back(host, size)

    def _show(self, now: float) -> None:
        books, (arrivals, refused) = self._books, self._shown
        part = 100 * (self.refused - refused) / max(1, self.arrivals - arrivals)
        print(
            f"  {now:9.1f} {len(self._running):7} {part:10.2f}"
            f"  {books.percent(books.total - books.free)}  {books.percent(books.stranded())}"
            f" {books.in_use():13}",
            flush=True,
        )
        self._shown = self.arrivals, self.refused


def main() -> None:
    names = ["first-fit", "best-fit", "pack", "spread", "balanced"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--slots", type=int, default=10_000, help="mean number, without refusals")
    parser.add_argument("--load", type=float, default=0.9)
    parser.add_argument("--turnovers", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", choices=names, action="append")
    arguments = parser.parse_args()
    hosts = cluster_for(arguments.slots, arguments.load, arguments.seed)
    print(f"{len(hosts)} hosts, load {arguments.load}, seed {arguments.seed}")
    for name in arguments.policy or names:
        print(name)
        print("  turnovers   slots  refused %  allocated: cpu, memory %  stranded  hosts in use")
        policy: Policy = (
            BestFit(hosts)
            if name == "best-fit"
            else Engine(hosts, EngineSettings(memory_bytes_min=0, **STRATEGIES[name]))
        )
        churn = Churn(policy, hosts, arguments.seed)
        churn.run(arguments.slots, arguments.turnovers)
        per_arrival_us = 1e6 * churn.spent_s / churn.arrivals
        print(f"  {churn.refused} of {churn.arrivals} refused, {per_arrival_us:.0f} us per arrival")
        gc.collect()


if __name__ == "__main__":
    main()
