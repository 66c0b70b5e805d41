"""What administrators see of an executor: metrics that promtool accepts, and whether it is
healthy.
"""

from __future__ import annotations

import asyncio
import subprocess
import urllib.error
import urllib.request

import pytest
from prometheus_client import generate_latest

from task_executor.service.metrics import ExecutorMetrics
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import MIB, ScriptedRM, allocation, eventually, free


async def fetch(executor: Executor, path: str = "/metrics") -> tuple[int, str]:
    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(
                f"http://{executor.front.metrics_address}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(get)


async def values(executor: Executor) -> dict[str, float]:
    _, text = await fetch(executor)
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


async def test_every_dimension_is_shown_in_every_state(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation(cpu_milli=1500), allocation("huge", cpu_milli=9_000))
    executor.front.meter._measured_at = -1e9
    shown = await values(executor)
    assert shown['finegrain_executor_cpu_cores{state="total"}'] == 4
    assert shown['finegrain_executor_cpu_cores{state="allocated"}'] == 1.5
    assert shown['finegrain_executor_memory_bytes{pool="all",state="allocated"}'] == 64 * MIB
    assert shown['finegrain_executor_memory_bytes{pool="all",state="used"}'] == 1000
    assert shown['finegrain_executor_slot_states{state="allocated"}'] == 1
    assert shown['finegrain_executor_carve_duration_seconds_count{outcome="carved"}'] == 1
    assert shown["finegrain_executor_rm_connection_up"] == 1
    assert shown["finegrain_executor_registration_number"] == 1
    calls = 'finegrain_executor_calls_total{method="AllocateSlots",status="OK"}'
    assert shown[calls] == 1
    await rm.free(free())
    shown = await values(executor)
    assert shown['finegrain_executor_cpu_cores{state="allocated"}'] == 0
    assert shown["finegrain_executor_free_duration_seconds_count"] == 1


async def test_tasks_are_counted_by_outcome(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation())
    ends: dict[str, dict[str, object]] = {
        "succeeded": {"exit_code": 0},
        "nonzero": {"exit_code": 1},
        "timed_out": {"exit_code": None, "signal": 15, "timed_out": True},
        "oom_killed": {"exit_code": None, "signal": 9, "oom_killed": True, "oom_kills": 2},
    }
    for name, how in ends.items():
        await executor.job_master.submit("true", task_id=name)
        executor.helper.end(name, **how)  # type: ignore[arg-type]
        await executor.job_master.watch(name)
    await executor.job_master.submit("true", task_id="runs")
    for _ in range(2):
        shown = await values(executor)
        for name in ends:
            assert shown[f'finegrain_executor_tasks_total{{outcome="{name}"}}'] == 1
        assert shown["finegrain_executor_oom_kills_total"] == 2
        assert shown["finegrain_executor_running_tasks"] == 1


async def test_no_metric_carries_an_id(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation("very-special-id"))
    _, text = await fetch(executor)
    assert "very-special-id" not in text


@pytest.mark.needs("promtool")
async def test_promtool_finds_nothing_to_complain_about(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation())
    _, text = await fetch(executor)
    checked = await asyncio.to_thread(
        subprocess.run, ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


async def test_ready_means_that_the_rm_hears_us(rm: ScriptedRM, executor: Executor) -> None:
    assert (await fetch(executor, "/readyz"))[0] == 200
    await rm.stop()
    await eventually(lambda: not executor.front.agent.state.connected, "it notices")
    assert (await fetch(executor, "/readyz"))[0] == 503
    assert (await fetch(executor, "/healthz"))[0] == 200


def test_devices_are_shown_in_devices_and_their_memory_in_bytes() -> None:
    metrics = ExecutorMetrics("0")
    total = {"device.gpu-core": 800, "device.rdma": 150, "device.gpu-memory": 80 * MIB}
    metrics._set_amounts("total", total)
    shown = generate_latest(metrics.registry).decode().splitlines()
    assert {line for line in shown if line.startswith("finegrain_executor_device_")} == {
        'finegrain_executor_device_units{dimension="gpu-core",state="total"} 8.0',
        'finegrain_executor_device_units{dimension="rdma",state="total"} 1.5',
        'finegrain_executor_device_memory_bytes{state="total"} 8.388608e+07',
    }
