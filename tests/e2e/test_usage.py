"""What slots and hosts really use, from the kernel's counters to the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from tests.e2e.driving import Small, eventually, python, small_cluster
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.needs("cgroup-v1")

SPIN = "held = bytearray(20 << 20)\nwhile True: pass"


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Small]:
    with small_cluster(home, executors=1) as small:
        yield small


async def test_a_spinning_slot_is_told_apart_from_an_idle_one(small: Small) -> None:
    spec = fg.SlotSpec(cpu_milli=200, memory_bytes=48 * fg.MIB, count=2)
    async with small.connect() as cluster, cluster.job("spinner and idle") as job:
        busy, idle = [await each.granted(PATIENCE_S) for each in await job.request_slots(spec)]
        await busy.run(python(SPIN))

        def used() -> dict[str, Any]:
            rows = {each["allocation_id"]: each["used"] for each in small.cli.items("slots")}
            return rows if (rows[busy.allocation_id] or {"cpu_milli": 0})["cpu_milli"] else {}

        rows = eventually(used, "the spinning slot is measured")
        executor = small.cli.items("executors")[0]
        wide = small.cli("slots", "-o", "wide").text
        of_slot = small.cli("usage", "--slot", busy.allocation_id).text
        of_host = small.cli("usage", executor["executor_id"]).text
        samples = small.cli.json("usage", executor["executor_id"])["samples"]

        assert rows[busy.allocation_id]["memory_bytes"] > 20 * fg.MIB
        assert rows[idle.allocation_id]["cpu_milli"] == 0
        assert executor["used"]["cpu_milli"] >= rows[busy.allocation_id]["cpu_milli"] // 2
        assert executor["used"]["host"]["memory_used_bytes"] > 20 * fg.MIB
        assert "USED" in wide
        assert re.search(r"^executor +\S+$", of_slot, re.MULTILINE)
        assert re.search(r"^host cpu +[0-9.]+m? by all programs$", of_host, re.MULTILINE)
        assert samples[0]["host_memory_used_bytes"] > 20 * fg.MIB


def test_wrong_words_are_refused(small: Small) -> None:
    neither = small.cli("usage")
    unknown = small.cli("usage", "nobody")
    assert neither.code == 2
    assert "--slot SLOT" in small.cli.error(neither)
    assert unknown.code == 3
    assert "nobody" in small.cli.error(unknown)
