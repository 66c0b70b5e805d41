"""Virtual time, and a network that delays, drops, duplicates and reorders what is said over it.

Knows nothing of what is said. A message reaches only the life of a process that it was sent to, as
with TCP; what a dead process has sent may still arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

Action = Callable[[], None]
Reply = Callable[[Any], None]
"""Takes the answer, or the FinegrainError that is one."""


class Unreached(Exception):
    """Nobody knows whether the call was served."""


class Loop:
    """Events in order of virtual time; those of one moment in order of their making."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.ran = 0
        self._made = 0
        self._heap: list[tuple[int, int, Action]] = []

    def after(self, delay_ms: int, action: Action) -> None:
        """Runs the action when that much time has passed."""
        self._made += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._made, action))

    def run_until(self, end_ms: int) -> None:
        """Lets time pass."""
        while self._heap and self._heap[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._heap)
            self.ran += 1
            action()
        self.now_ms = end_ms


@dataclass(eq=False)
class Node:
    """A process that can die and come back; `life` counts how often it did."""

    name: str
    loop: Loop
    up: bool = False
    life: int = 0

    def after(self, delay_ms: int, action: Action) -> None:
        """Runs the action later, if this process still lives then."""
        life = self.life
        self.loop.after(delay_ms, lambda: action() if self.up and self.life == life else None)


@dataclass
class Weather:
    """How bad the network is, in chances per message."""

    drop: float = 0.0
    duplicate: float = 0.0
    slow: float = 0.0  # takes seconds, not milliseconds


@dataclass
class Network:
    """Everything that is under way."""

    loop: Loop
    rng: Random
    weather: Weather = field(default_factory=Weather)
    cut: set[tuple[str, str]] = field(default_factory=set)  # (from, to) that lose everything
    undialled: set[tuple[str, str]] = field(default_factory=set)  # (from, to) that cannot call
    lost: int = 0
    repeated: int = 0
    delayed: int = 0

    def call(
        self, source: Node, target: Node, serve: Callable[[Reply], None], done: Reply, wait_ms: int
    ) -> None:
        """Serves a call at the target; `done` gets the answer, an error, or `Unreached`, once."""
        settled = False

        def finish(result: Any) -> None:
            nonlocal settled
            if not settled:
                settled = True
                done(result)

        def reply(result: Any) -> None:
            self._send(target, source, lambda: finish(result))

        if (source.name, target.name) in self.undialled:
            self.lost += 1
        else:
            self._send(source, target, lambda: serve(reply))
        source.after(wait_ms, lambda: finish(Unreached()))

    def _send(self, source: Node, target: Node, deliver: Action) -> None:
        life = target.life
        copies = 1
        if (source.name, target.name) in self.cut or self.rng.random() < self.weather.drop:
            self.lost += 1
            return
        if self.rng.random() < self.weather.duplicate:
            self.repeated += 1
            copies = 2
        for _ in range(copies):
            delay_ms = self.rng.randint(1, 30)
            if self.rng.random() < self.weather.slow:
                self.delayed += 1
                delay_ms = self.rng.randint(30, 4_000)
            self.loop.after(
                delay_ms, lambda: deliver() if target.up and target.life == life else None
            )
