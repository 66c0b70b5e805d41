"""Health of a device over time: failures, delays and probes."""

from __future__ import annotations

from finegrain.devices.condition import DeviceHealth
from task_executor.engine.device_health import (
    DELAY_FIRST_MS,
    DELAY_MAX_MS,
    LOST_AFTER_MS,
    WINDOW_MS,
    WORKS,
    HealthRecord,
    Observation,
)

BAD = Observation(DeviceHealth.UNHEALTHY, "reset it", work_lost=True)
SILENT = Observation(DeviceHealth.UNKNOWN, "the driver is silent")


def shown(record: HealthRecord) -> tuple[DeviceHealth, str]:
    return record.health, record.problem


def test_a_device_that_recovers_is_used_only_after_a_probe() -> None:
    record = HealthRecord()
    record.observe(0, BAD)
    assert shown(record) == (DeviceHealth.UNHEALTHY, "reset it")
    assert not record.must_be_probed(0)
    record.observe(1_000, WORKS)
    assert shown(record)[0] is DeviceHealth.PROBING
    assert record.must_be_probed(1_000)
    record.probed(2_000, "")
    assert shown(record) == (DeviceHealth.HEALTHY, "")


def test_a_probe_that_fails_keeps_the_device_out_for_a_while() -> None:
    record = HealthRecord()
    record.observe(0, BAD)
    record.observe(1, WORKS)
    record.probed(2, "byte 7 differs")
    record.observe(3, WORKS)
    assert shown(record)[0] is DeviceHealth.UNHEALTHY
    assert record.problem == "the probe failed: byte 7 differs"
    record.observe(2 + DELAY_FIRST_MS, WORKS)
    assert record.must_be_probed(2 + DELAY_FIRST_MS)
    record.probed(3 + DELAY_FIRST_MS, "")
    assert shown(record)[0] is DeviceHealth.HEALTHY


def test_a_device_that_flaps_stays_out_for_longer_each_time() -> None:
    record, delays = HealthRecord(), []
    for at_ms in range(5):
        record.observe(at_ms * 10, BAD)
        record.observe(at_ms * 10 + 1, WORKS)
        steps = range(0, DELAY_MAX_MS, 10_000)
        delays.append(next(ms for ms in steps if record.must_be_probed(at_ms * 10 + ms)))
        record.probed(at_ms * 10 + 2, "")
    assert delays == [0, 0, DELAY_FIRST_MS, 2 * DELAY_FIRST_MS, 4 * DELAY_FIRST_MS]


def test_delays_are_limited_and_old_failures_are_forgotten() -> None:
    record = HealthRecord()
    for at_ms in range(10_000):
        record.observe(at_ms, BAD)
        record.observe(at_ms, WORKS)
        record.probed(at_ms, "")
    record.observe(10_000, BAD)
    record.observe(10_000, WORKS)
    assert not record.must_be_probed(10_000 + DELAY_MAX_MS - 1)
    assert record.must_be_probed(10_000 + DELAY_MAX_MS)
    record.probed(10_000, "")
    assert record.failures(10_000 + WINDOW_MS) == 0
    record.observe(10_000 + WINDOW_MS, BAD)
    record.observe(10_000 + WINDOW_MS, WORKS)
    assert record.must_be_probed(10_000 + WINDOW_MS)


def test_work_is_lost_only_after_a_while() -> None:
    record = HealthRecord()
    record.observe(0, BAD)
    assert not record.work_is_lost(LOST_AFTER_MS - 1)
    record.observe(1_000, WORKS)
    record.observe(2_000, BAD)
    assert not record.work_is_lost(LOST_AFTER_MS)  # it worked in between
    assert record.work_is_lost(2_000 + LOST_AFTER_MS)


def test_a_silent_driver_is_no_failure_of_its_devices() -> None:
    record = HealthRecord()
    for at_ms in range(100):
        record.observe(at_ms, SILENT)
        assert shown(record)[0] is DeviceHealth.UNKNOWN
        record.observe(at_ms, WORKS)
        assert record.must_be_probed(at_ms)
        record.probed(at_ms, "")
    assert record.failures(100) == 0
    assert not record.work_is_lost(LOST_AFTER_MS * 2)


def test_the_result_of_a_probe_does_not_hide_a_failure_during_it() -> None:
    record = HealthRecord()
    record.observe(0, BAD)
    record.observe(1, WORKS)
    record.observe(2, BAD)
    record.probed(3, "")
    assert shown(record)[0] is DeviceHealth.UNHEALTHY
    assert record.failures(3) == 2


def test_a_failure_that_lasts_counts_once() -> None:
    record = HealthRecord()
    for at_ms in range(10_000):
        record.observe(at_ms, BAD)
    assert record.failures(10_000) == 1


def test_a_device_can_be_kept_out_for_a_given_time() -> None:
    record = HealthRecord()
    record.observe(0, Observation(DeviceHealth.UNHEALTHY, "XID 74", wait_ms=5_000))
    record.observe(1, WORKS)
    assert shown(record)[0] is DeviceHealth.PROBING
    assert "is probed after 4 s" in record.problem
    assert not record.must_be_probed(4_999)
    assert record.must_be_probed(5_000)
