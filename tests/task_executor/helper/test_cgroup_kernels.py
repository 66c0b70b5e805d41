"""Kernels differ in what they count, limit and kill: slots get the same limits, or the difference
is reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups import choose_driver
from task_executor.helper.protocol import Fault
from task_executor.helper.slots import Slots
from tests.task_executor.helper.fake_cgroups import FakeV1, FakeV2
from tests.task_executor.helper.test_cgroup_drivers import (
    CO_MOUNTED,
    SEPARATE,
    config,
    finish,
    limits,
    slots_on,
    start_in,
)


@pytest.mark.parametrize(
    "make_kernel", [FakeV2, lambda: FakeV1(SEPARATE), lambda: FakeV1(CO_MOUNTED)]
)
def test_everything_that_a_task_uses_is_counted_in_a_group_of_its_own(
    make_kernel: Any, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    groups = [start_in(slots, kernel, task_id, pid) for task_id, pid in (("t1", 7), ("t2", 8))]
    used = {"memory_current_bytes": 4096, "memory_peak_bytes": 8192, "cpu_usec": 2500}
    for group in groups:
        assert slots.driver.counters(group) == used | {"pids": 1, "oom_kills": 0}


class OldV1(FakeV1):
    """Before Linux 5.11, a group's limit applied to its children only if `memory.use_hierarchy` was
    set.
    """

    def populate(self, path: str) -> None:
        super().populate(path)
        if path.startswith("/sys/fs/cgroup/memory"):
            self.files[f"{path}/memory.use_hierarchy"] = "0"


def test_on_v1_the_memory_limit_of_a_slot_holds_for_its_tasks_together(tmp_path: Path) -> None:
    kernel = OldV1(SEPARATE)
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    assert kernel.read(f"{slots.driver.slot('a.1')['memory']}/memory.use_hierarchy") == "1"


def test_how_slots_are_killed_is_reported_as_the_kernel_can() -> None:
    assert choose_driver(config(), FakeV2()).report()["kill"] == "cgroup.kill"
    assert choose_driver(config(), FakeV2(kill=False)).report()["kill"] == "process tree"


def test_without_cgroups_what_cannot_be_killed_is_found_below_the_supervisors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = choose_driver(config(isolation="none"), kernel := FakeV2())
    monkeypatch.setattr(
        "task_executor.helper.cgroups.base.descendants", lambda supervisors: {*supervisors, 7}
    )
    monkeypatch.setattr("task_executor.helper.slots._DESTROY_S", 0.0)
    monkeypatch.setattr(kernel, "kill", lambda pid, signum: None)
    slots = Slots(tmp_path, driver, lambda _name: [6])
    slots.create(limits())
    with pytest.raises(Fault, match=r"not empty after .* processes left: \[6, 7\]"):
        finish(slots.destroy("a.1"))
