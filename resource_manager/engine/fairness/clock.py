"""Warped time, in which what decays is a straight line. Decides how quickly service is forgotten;
refuses to know who received it.

With a half-life H, service received at u counts at t by 2^-((t-u)/H). Multiplied by
g(t) = 2^((t-L)/H), with any fixed landmark L, that weight no longer depends on t: what was
received once is a constant, and what is being received at a fixed rate is a straight line in
tau(t) = H/ln2 * (2^((t-L)/H) - 1), since dtau/dt = g. Comparing such *scaled* amounts at one moment
is comparing the decayed ones. (Forward decay: Cormode, Shkapenyuk, Srivastava, Xu: "Forward decay:
a practical time decay model for streaming systems", ICDE 2009.)

Without a half-life tau is t - L, and g is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

HALF_LIVES_MAX = 256
"""The landmark is moved when it lies so many half-lives back: far from what a float can hold."""


@dataclass(frozen=True, slots=True)
class Rescaling:
    """The landmark was moved: scaled amounts are to be multiplied by `factor`, a power of two (so
    nothing is rounded), and warped times to be mapped by `tau`.
    """

    factor: float
    offset: float  # H / ln 2

    def tau(self, tau: float) -> float:
        """A warped time as it is called now."""
        return (tau + self.offset) * self.factor - self.offset


class Clock:
    """The present moment, warped. Never goes back: an earlier time is taken for the present one.

    Attributes:
        now_ms: monotonic milliseconds.
        tau: warped seconds since the landmark.
        scale: g, what an amount of now is multiplied by to be compared with scaled ones.
        bend: dg/dtau, so g = 1 + bend * tau.
    """

    __slots__ = ("_half_life_ms", "_landmark_ms", "bend", "now_ms", "scale", "tau")

    def __init__(self, half_life_ms: int | None, now_ms: int) -> None:
        self._half_life_ms = half_life_ms
        self._landmark_ms = now_ms
        self.bend = log(2) * 1_000 / half_life_ms if half_life_ms else 0.0
        self.now_ms = now_ms
        self.tau = 0.0
        self.scale = 1.0

    def advance(self, now_ms: int) -> Rescaling | None:
        """It is `now_ms` now. What is kept by this clock is to be moved as the answer says."""
        if now_ms <= self.now_ms:
            return None
        self.now_ms = now_ms
        half_life_ms = self._half_life_ms
        if half_life_ms is None:
            self.tau = (now_ms - self._landmark_ms) / 1_000
            return None
        moved = None
        halvings = (now_ms - self._landmark_ms) // half_life_ms
        if halvings >= HALF_LIVES_MAX:
            self._landmark_ms += halvings * half_life_ms
            moved = Rescaling(2.0**-halvings, 1 / self.bend)
        self.scale = 2.0 ** ((now_ms - self._landmark_ms) / half_life_ms)
        self.tau = (self.scale - 1.0) / self.bend
        return moved
