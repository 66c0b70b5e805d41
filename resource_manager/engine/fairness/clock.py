"""Defines warped time: a clock with which decaying amounts become straight lines.

With a half-life H, usage from time u counts with the factor 2^-((t-u)/H) at time t. This factor
changes all the time, so decayed amounts are not stored. Instead, amounts are stored *scaled*: an
amount that a flow receives at time u is multiplied by g(u) = 2^((u-L)/H), where L is a fixed time,
the landmark. The scaled amount divided by g(t) is the decayed amount at time t. At a given time,
g(t) is the same for all flows. So scaled amounts have the same order as decayed amounts.

If a flow's usage grows at a fixed rate, the scaled usage is a straight line in the warped time
tau(t) = H/ln2 * (g(t) - 1), because dtau/dt = g. (Forward decay: Cormode, Shkapenyuk, Srivastava,
Xu: "Forward decay: a practical time decay model for streaming systems", ICDE 2009.)

Example with H = 60 s and L = 0: one flow receives 100 at t = 0, and another flow receives 60 at t =
60. At t = 60, their decayed amounts are 50 and 60. Their scaled amounts are 100 * g(0) = 100 and 60
* g(60) = 120. The order and the ratio are the same, but scaled amounts do not change when time
passes.

A slot with cost 1 that runs from t = 0 to t = 60 adds a scaled amount of tau(60) = 86.6. At t = 60,
the decayed amount is 86.6 / g(60) = 43.3. Without decay, the amount would be 60. The decayed amount
is lower, because the usage of the first seconds has decayed.

Without a half-life, tau is t - L, and g is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

HALF_LIVES_MAX = 256
"""The number of half-lives after which the landmark is moved. After 1,024 half-lives, g would
overflow a float.
"""


@dataclass(frozen=True, slots=True)
class Rescaling:
    """A move of the landmark. All stored scaled amounts must be multiplied by `factor`, and all
    warped times must be converted by `tau`. The factor is a power of two, so no number is rounded.
    """

    factor: float
    offset: float  # the constant H / ln 2

    def tau(self, tau: float) -> float:
        """Converts a warped time to the new landmark."""
        return (tau + self.offset) * self.factor - self.offset


class Clock:
    """The current time, in milliseconds and in warped time. The time never decreases.

    Attributes:
        now_ms: the current time in monotonic milliseconds.
        tau: the current time in warped seconds since the landmark.
        scale: the present value of g. An amount that a flow receives now is multiplied by this
            value.
        bend: the constant dg/dtau, so that g = 1 + bend * tau.
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
        """Advances the clock. A time that is not later than the current time is ignored.

        Returns:
            The rescaling that the caller must apply to all stored values. None if the landmark has
            not moved.
        """
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
            # The landmark moves by whole half-lives, so that the factor is a power of two, and no
            # number is rounded.
            self._landmark_ms += halvings * half_life_ms
            moved = Rescaling(2.0**-halvings, 1 / self.bend)
        self.scale = 2.0 ** ((now_ms - self._landmark_ms) / half_life_ms)
        self.tau = (self.scale - 1.0) / self.bend
        return moved
