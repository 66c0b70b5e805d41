"""Virtual time, and a network that delays, drops, duplicates and reorders messages.

As with TCP, a message reaches only one run of a process: the run to which it was sent. Messages of
a dead process may still arrive. A stopped process (SIGSTOP) does nothing. When it continues, it
handles all waiting messages and timers at once.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Action = Callable[[], None]
Reply = Callable[[Any], None]
"""Takes the answer, or the FinegrainError that replaces it."""

Way = tuple[str, str]
"""Names of sender and receiver."""

START_TIME_MS = 1_700_000_000_000


class Unreached(Exception):
    """The call may or may not have been served."""


class Loop:
    """Runs events in order of virtual time; events of one moment in order of creation."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ran = 0
        self._made = 0
        self._heap: list[tuple[int, int, Action]] = []

    def after(self, delay_ms: int, action: Action) -> None:
        """Runs the action after `delay_ms`."""
        self._made += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._made, action))

    def run_until(self, end_ms: int) -> None:
        """Runs all events until `end_ms`."""
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._heap)
            self.ran += 1
            action()
        self.now_ms = end_ms


@dataclass(eq=False)
class Node:
    """A process that can crash and restart. `life` counts its starts."""

    name: str
    loop: Loop
    up: bool = False
    life: int = 0
    stopped_until_ms: int = 0
    wall_ahead_ms: int = 0  # how far its wall clock differs from the true time

    def after(self, delay_ms: int, action: Action) -> None:
        """Runs the action later in this run of the process, and once it is not stopped."""
        life = self.life
        self.loop.after(delay_ms, lambda: self.run(life, action))

    def run(self, life: int, action: Action) -> None:
        """Runs the action in that run of the process: now, or when the process continues."""
        if not self.up or self.life != life:
            return
        if self.is_stopped:
            left_ms = self.stopped_until_ms - self.loop.now_ms
            self.loop.after(left_ms, lambda: self.run(life, action))
        else:
            action()

    @property
    def is_stopped(self) -> bool:
        """Returns whether the process is stopped by SIGSTOP."""
        return self.loop.now_ms < self.stopped_until_ms

    @property
    def time_ms(self) -> int:
        """Returns its wall clock, which may be wrong and may jump."""
        return START_TIME_MS + self.loop.now_ms + self.wall_ahead_ms


@dataclass
class Weather:
    """Probabilities of network trouble per message."""

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0  # takes seconds, not milliseconds


@dataclass
class Network:
    """The messages in transit."""

    loop: Loop
    rng: Random
    weather: Weather = field(default_factory=Weather)
    cut: Counter[Way] = field(default_factory=Counter)  # ways that lose all messages
    undialled: Counter[Way] = field(default_factory=Counter)  # ways on which no call can begin
    hurt: Counter[str] = field(default_factory=Counter)  # messages by kind of trouble

    def call(
        self, source: Node, target: Node, serve: Callable[[Reply], None], done: Reply, wait_ms: int
    ) -> None:
        """Serves a call at the target; `done` gets the answer, an error, or `Unreached`, once.

        The answer uses the caller's connection: it reaches only the run of the process that called.
        """
        settled = False
        life = source.life

        def finish(result: Any) -> None:
            nonlocal settled
            if not settled:
                settled = True
                done(result)

        def reply(result: Any) -> None:
            self._send(target, source, life, lambda: finish(result))

        if self.undialled[source.name, target.name] > 0:
            self.hurt["refused"] += 1
        else:
            self._send(source, target, target.life, lambda: serve(reply))
        source.after(wait_ms, lambda: finish(Unreached()))

    def connected(self, one: Node, other: Node) -> bool:
        """Returns whether both ways between two nodes work."""
        return self.cut[one.name, other.name] <= 0 and self.cut[other.name, one.name] <= 0

    def _send(self, source: Node, target: Node, life: int, deliver: Action) -> None:
        copies = 1
        weather = self.weather
        if self.cut[source.name, target.name] > 0 or self.rng.random() < weather.drop:
            self.hurt["lost"] += 1
            return
        if self.rng.random() < weather.duplicate:
            self.hurt["repeated"] += 1
            copies = 2
        for _ in range(copies):
            delay_ms = self.rng.randint(1, 30)
            if self.rng.random() < weather.slow:
                self.hurt["late"] += 1
                delay_ms = self.rng.randint(30, 4_000)
            self.loop.after(delay_ms, lambda: target.run(life, deliver))
