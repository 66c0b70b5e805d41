"""Tests of the metrics port."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from finegrain.v1 import resources_pb2
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store
from tests.support.rm_service import (
    ScriptedExecutor,
    ScriptedJob,
    fetch,
    next_events,
    running_rm,
    slot_request,
)


async def test_allocated_used_and_reserved_are_told_apart(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(
            slot_request("slot-1", cpu_milli=1500), slot_request("slot-2", cpu_milli=4000)
        )
        await next_events(stream, 1)
        await executor.send_report()
        status, text = await fetch(rm.metrics_address, "/metrics")
        stream.cancel()
    assert status == 200
    lines = set(text.splitlines())
    for line in (
        'finegrain_cpu_cores{executor="host-a",state="total"} 4.0',
        'finegrain_cpu_cores{executor="host-a",state="allocated"} 1.5',
        'finegrain_cpu_cores{executor="host-a",state="used"} 0.25',
        'finegrain_memory_bytes{executor="host-a",state="reserved"} 2.68435456e+08',
        'finegrain_executor_up{executor="host-a"} 1.0',
        'finegrain_rm_executors{state="active"} 1.0',
        'finegrain_rm_pending_requests{reason="WAITING_CAPACITY"} 1.0',
        'finegrain_rm_requests_total{outcome="accepted"} 2.0',
        'finegrain_rm_requests_total{outcome="granted"} 1.0',
        'finegrain_rm_slot_reports_total{result="applied"} 1.0',
        "finegrain_rm_request_wait_seconds_count 1.0",
    ):
        assert line in lines
    assert job.job_id not in text


async def test_waiting_is_measured_in_restored_books_as_well(tmp_path: Path) -> None:
    with open_store(sqlite_url(tmp_path / "finegrain.db")) as store:
        store.lead("a restore")
        store.leave_lost_history()
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        await next_events(stream, 1)
        _, text = await fetch(rm.metrics_address, "/metrics")
        stream.cancel()
    assert "finegrain_rm_request_wait_seconds_count 1.0" in text.splitlines()


async def test_a_change_of_size_is_not_another_grant(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1", cpu_milli=1500))
        await next_events(stream, 1)
        size = resources_pb2.ResourceProfile(cpu_milli=1000, task_heap_memory_bytes=64 << 20)
        await job.resize("slot-1", profile=size)
        (told,) = await next_events(stream, 1)
        _, text = await fetch(rm.metrics_address, "/metrics")
        stream.cancel()
    assert told.reason == "RESIZED"
    lines = text.splitlines()
    assert 'finegrain_rm_requests_total{outcome="granted"} 1.0' in lines
    assert "finegrain_rm_request_wait_seconds_count 1.0" in lines


@pytest.mark.needs("promtool")
async def test_promtool_finds_nothing_to_say(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm):
        _, text = await fetch(rm.metrics_address, "/metrics")
    command = ["promtool", "check", "metrics"]
    checked = await asyncio.to_thread(
        subprocess.run, command, input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


async def test_health_and_readiness(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm:
        assert await fetch(rm.metrics_address, "/healthz") == (200, "ok\n")
        assert await fetch(rm.metrics_address, "/readyz") == (200, "ok\n")
        assert (await fetch(rm.metrics_address, "/../etc/passwd"))[0] == 404
