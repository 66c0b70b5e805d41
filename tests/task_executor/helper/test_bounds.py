"""The helper accepts exactly the amounts that the other programs let through."""

from __future__ import annotations

import pytest

from finegrain.values.bounds import CPU_MILLI_MAX
from task_executor.helper.protocol import HELPER_VERBS, Fault, check_request
from tests.task_executor.helper.test_cgroup_drivers import limits


@pytest.mark.parametrize("field", ["cpu_milli", "cpu_limit_milli"])
def test_the_most_cpu_is_the_same_everywhere(field: str) -> None:
    args = limits() | {field: CPU_MILLI_MAX}
    check_request({"verb": "create_slot", "args": args}, HELPER_VERBS)
    with pytest.raises(Fault, match=field):
        check_request(
            {"verb": "create_slot", "args": args | {field: CPU_MILLI_MAX + 1}}, HELPER_VERBS
        )
