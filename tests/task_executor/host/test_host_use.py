"""Compares the measured use of the whole host with the kernel's files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from finegrain.cpuset import CpuSet
from task_executor.host.host_use import HostMeter


def test_a_busy_cpu_is_seen(tmp_path: Path) -> None:
    meter = HostMeter(tmp_path)
    until = time.process_time() + 0.5
    while time.process_time() < until:  # use half a second of cpu time
        pass
    used = meter.measure()
    cpus = CpuSet.parse(used.cpus)

    assert used.cpu_milli > 100
    assert max(used.cpu_busy_percent) > 10
    assert len(used.cpu_busy_percent) == len(cpus) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert all(0 <= each <= 100 for each in used.cpu_busy_percent)


def test_memory_disk_and_load_are_those_of_the_kernel(tmp_path: Path) -> None:
    used = HostMeter(tmp_path).measure()
    lines = Path("/proc/meminfo").read_text().splitlines()
    total_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal:"))
    disk = os.statvfs(tmp_path)

    assert used.memory_total_bytes == total_kib * 1024
    assert 0 < used.memory_used_bytes < used.memory_total_bytes
    assert used.disk_total_bytes == disk.f_blocks * disk.f_frsize
    assert used.load_1m >= 0


def test_counters_become_rates_since_the_last_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s, written, sent = [100.0], [5_000], [0]
    disks = lambda: SimpleNamespace(read_bytes=0, write_bytes=written[0])  # noqa: E731
    monkeypatch.setattr(psutil, "disk_io_counters", disks)
    monkeypatch.setattr(
        psutil,
        "net_io_counters",
        lambda pernic: {
            "eth0": SimpleNamespace(bytes_recv=0, bytes_sent=sent[0]),
            "lo": SimpleNamespace(bytes_recv=10**9 * sent[0], bytes_sent=10**9 * sent[0]),
        },
    )
    meter = HostMeter(tmp_path, clock=lambda: at_s[0])
    at_s[0], written[0], sent[0] = 110.0, 25_000, 400
    used = meter.measure()
    assert used.disk_write_bytes_per_second == 2_000
    assert (used.network_transmit_bytes_per_second, used.network_receive_bytes_per_second) == (
        40,
        0,
    )

    at_s[0], written[0] = 120.0, 10  # another disk has replaced it, and counts from 0
    assert meter.measure().disk_write_bytes_per_second == 0


def test_a_file_system_that_is_gone_counts_as_0(tmp_path: Path) -> None:
    used = HostMeter(tmp_path / "not there").measure()
    assert (used.disk_total_bytes, used.disk_used_bytes) == (0, 0)
