"""Follows the health of one device: its failures, and when the device can be used again.

A device that failed and then works again is not used immediately. If the device has failed often, a
delay without a failure must pass first. Then the device must pass a probe. So the executor gives no
work to a device that fails again and again. It also gives no work to a device that answers but is
broken.

Example: a device fails at 0:00, 0:10, 0:20 and 0:30, and works immediately after each failure:

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
"""Failures that happened longer ago than this do not count."""

FREE_FAILURES: Final = 2
"""Up to this number of failures within the window, there is no delay."""

DELAY_FIRST_MS: Final = 60_000
DELAY_MAX_MS: Final = 3_600_000

_FAILURES_KEPT: Final = 64

LOST_AFTER_MS: Final = 5_000
"""The executor ends slots only after their work has been impossible for this time: one bad reading
is not enough.
"""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of a device at one moment.

    Attributes:
        health: the health that the driver reports; never PROBING.
        problem: the reason why the device is not healthy, and how to repair it.
        work_lost: True if work on the device cannot continue because of the problem.
        wait_ms: the minimum time between the end of the problem and the next use of the device.
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
        health: the present health.
        problem: the reason why the device is not healthy; empty if the device is healthy.
    """

    health: DeviceHealth = DeviceHealth.HEALTHY
    problem: str = ""
    _failures: list[int] = field(default_factory=list)
    _lost_since_ms: int | None = None
    _probe_at_ms: int = 0
    _failed_probe: bool = False

    def observe(self, now_ms: int, seen: Observation) -> None:
        """Updates the health from a new observation.

        Args:
            now_ms: the time of the observation.
            seen: the observation.
        """
        if seen.health is DeviceHealth.HEALTHY:
            self._answers(now_ms)
            return
        # If the driver does not answer, the health of its devices is UNKNOWN. This does not count
        # as a failure of the devices.
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
        """Returns True if the caller must probe the device now, and then call `probed`."""
        return self.health is DeviceHealth.PROBING and now_ms >= self._probe_at_ms

    def probed(self, now_ms: int, problem: str) -> None:
        """Updates the health from the result of a probe.

        Args:
            now_ms: the time of the result.
            problem: the reason why the device failed the probe; empty if the device works.
        """
        # If the device has failed again during the probe, the result is no longer valid.
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
        """Returns True if work on the device has been impossible for `LOST_AFTER_MS`."""
        since_ms = self._lost_since_ms
        return since_ms is not None and now_ms - since_ms >= LOST_AFTER_MS

    def failures(self, now_ms: int) -> int:
        """Returns the number of failures within the window."""
        self._failures = [each for each in self._failures if now_ms - each < WINDOW_MS]
        return len(self._failures)

    def _answers(self, now_ms: int) -> None:
        self._lost_since_ms = None
        if self.health in (DeviceHealth.HEALTHY, DeviceHealth.PROBING):
            return
        # After a failed probe, the state does not change until the next probe is allowed.
        if self._failed_probe and now_ms < self._probe_at_ms:
            return
        self.health, self._failed_probe = DeviceHealth.PROBING, False
        count, delay_s = self.failures(now_ms), (self._probe_at_ms - now_ms) // 1000
        self.problem = "it works again, but must pass a probe before it is used"
        if delay_s > 0:
            times = f"failed {count} times within an hour" if count > 1 else "has failed"
            self.problem = f"it {times}; it is probed after {delay_s} s without a failure"

    def _count_failure(self, now_ms: int) -> None:
        # A device can fail thousands of times. So only `_FAILURES_KEPT` failures are stored: with
        # this number, the delay has reached its maximum.
        self._failures = [*self._failures[1 - _FAILURES_KEPT :], now_ms]

    def _delay_ms(self, now_ms: int) -> int:
        extra = self.failures(now_ms) - FREE_FAILURES
        if extra <= 0:
            return 0
        # Limit the exponent first, because a device can fail thousands of times.
        return int(min(DELAY_FIRST_MS << min(extra - 1, 10), DELAY_MAX_MS))
