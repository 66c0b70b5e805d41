"""Health of one device over time: failures, delays, and probes before it is used again.

A device that failed and answers again is not used at once. It must first stay out for a delay, if
it has failed often, and then pass a probe. So neither a device that flaps nor one that is broken
but answers gets work.

Example, with failures at 0:00, 0:10, 0:20 and 0:30 that each end by themselves at once:

  failure  in the last hour  delay before the probe
  0:00     1                 none
  0:10     2                 none
  0:20     3                 1 minute
  0:30     4                 2 minutes; then 4, 8, ... and at most 1 hour
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from finegrain.devices.condition import DeviceHealth

WINDOW_MS: Final = 3_600_000
"""Failures within this time count."""

FREE_FAILURES: Final = 2
"""As many failures within the window cause no delay."""

DELAY_FIRST_MS: Final = 60_000
DELAY_MAX_MS: Final = 3_600_000

_FAILURES_KEPT: Final = 64

LOST_AFTER_MS: Final = 5_000
"""How long work must be impossible before its slots may be ended: one bad reading ends none."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is seen of a device at one moment; `health` is not PROBING.

    Attributes:
        health: as the driver reports it.
        problem: why it is not healthy, and the repair.
        work_lost: with a problem: work that has the device cannot go on.
        wait_ms: how long the device stays out at least, once it answers again.
    """

    health: DeviceHealth = DeviceHealth.HEALTHY
    problem: str = ""
    work_lost: bool = False
    wait_ms: int = 0


WORKS: Final = Observation()


@dataclass
class HealthRecord:
    """The health of one device. All times are in milliseconds of one monotonic clock.

    Attributes:
        health: what is in force.
        problem: why it is not healthy; empty: it is.
    """

    health: DeviceHealth = DeviceHealth.HEALTHY
    problem: str = ""
    _failures: list[int] = field(default_factory=list)
    _lost_since_ms: int | None = None
    _probe_at_ms: int = 0
    _failed_probe: bool = False

    def observe(self, now_ms: int, seen: Observation) -> None:
        """Takes in what is seen now."""
        if seen.health is DeviceHealth.HEALTHY:
            self._answers(now_ms)
            return
        # A driver that does not answer says nothing about its devices.
        is_failure = seen.health is not DeviceHealth.UNKNOWN
        if is_failure and self.health not in (DeviceHealth.UNHEALTHY, DeviceHealth.GONE):
            self._count_failure(now_ms)
        self.health, self.problem, self._failed_probe = seen.health, seen.problem, False
        if not seen.work_lost:
            self._lost_since_ms = None
        elif self._lost_since_ms is None:
            self._lost_since_ms = now_ms
        delay_ms = max(self._delay_ms(now_ms), seen.wait_ms)
        self._probe_at_ms = now_ms + delay_ms

    def must_be_probed(self, now_ms: int) -> bool:
        """Returns True if the device must be probed now; the caller then calls `probed`."""
        return self.health is DeviceHealth.PROBING and now_ms >= self._probe_at_ms

    def probed(self, now_ms: int, problem: str) -> None:
        """Takes in the result of a probe.

        Args:
            now_ms: the time.
            problem: why it failed; empty: the device works.
        """
        # It has failed again while it was probed, so the result says nothing about it now.
        if self.health is not DeviceHealth.PROBING:
            return
        if not problem:
            self.health, self.problem = DeviceHealth.HEALTHY, ""
            return
        self._count_failure(now_ms)
        self.health, self._failed_probe = DeviceHealth.UNHEALTHY, True
        self.problem = f"the probe failed: {problem}"
        self._probe_at_ms = now_ms + max(self._delay_ms(now_ms), DELAY_FIRST_MS)

    def work_is_lost(self, now_ms: int) -> bool:
        """Returns True if work that has the device has not been able to go on for a while."""
        since_ms = self._lost_since_ms
        return since_ms is not None and now_ms - since_ms >= LOST_AFTER_MS

    def failures(self, now_ms: int) -> int:
        """Returns how often the device failed within the window."""
        self._failures = [each for each in self._failures if now_ms - each < WINDOW_MS]
        return len(self._failures)

    def _answers(self, now_ms: int) -> None:
        self._lost_since_ms = None
        if self.health in (DeviceHealth.HEALTHY, DeviceHealth.PROBING):
            return
        # After a failed probe it stays as it is until it may be probed again.
        if self._failed_probe and now_ms < self._probe_at_ms:
            return
        self.health, self._failed_probe = DeviceHealth.PROBING, False
        count, delay_s = self.failures(now_ms), (self._probe_at_ms - now_ms) // 1000
        self.problem = "it answers again, and is used when it has passed a probe"
        if delay_s > 0:
            times = f"failed {count} times within an hour" if count > 1 else "has failed"
            self.problem = f"it {times}, and is probed after {delay_s} s without a failure"

    def _count_failure(self, now_ms: int) -> None:
        # A device may fail thousands of times; more than these change nothing.
        self._failures = [*self._failures[1 - _FAILURES_KEPT :], now_ms]

    def _delay_ms(self, now_ms: int) -> int:
        extra = self.failures(now_ms) - FREE_FAILURES
        if extra <= 0:
            return 0
        # The exponent is limited first, because a device may fail thousands of times.
        return int(min(DELAY_FIRST_MS << min(extra - 1, 10), DELAY_MAX_MS))
