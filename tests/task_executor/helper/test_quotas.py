"""A slot gets exactly the ordered cpu time, in thousandths of a core, also for odd amounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.task_executor.helper.test_cgroup_drivers import finish, limits, slots_on
from tests.task_executor.helper.test_resize_rules import BOTH, enforced

ODD = (10, 15, 101, 999, 1_001, 1_234, 99_999)


@pytest.mark.parametrize("make_kernel", BOTH)
@pytest.mark.parametrize("milli", ODD)
@pytest.mark.parametrize("what", ["booked", "cap"])
def test_a_quota_is_exact(make_kernel: Any, tmp_path: Path, milli: int, what: str) -> None:
    wanted = {"cpu_milli": milli} if what == "booked" else {"cpu_limit_milli": milli}
    usual = {"cpu_milli": 10}
    slots = slots_on(make_kernel(), tmp_path)
    slots.create(limits(**usual | wanted))
    assert quota_usec(enforced(slots)) == milli * 100  # of the 100,000 of a period
    finish(slots.resize(limits(**usual | {"cpu_milli": 5_000})))
    assert quota_usec(enforced(slots)) == 500_000
    finish(slots.resize(limits(**usual | wanted)))
    assert quota_usec(enforced(slots)) == milli * 100


def quota_usec(files: dict[str, str]) -> int:
    if "cpu.max" in files:
        quota, period = files["cpu.max"].split()
        assert period == "100000"
        return int(quota)
    return int(files["cpu.cfs_quota_us"])
