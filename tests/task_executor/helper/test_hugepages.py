"""A slot can use its huge pages, and no page more; tested on kernels in memory that count them."""

from __future__ import annotations

from pathlib import Path

import pytest

from task_executor.helper.protocol import HELPER_VERBS, Fault, check_request
from tests.task_executor.helper.fake_cgroups import FakeKernel, FakeV1, FakeV2
from tests.task_executor.helper.test_cgroup_drivers import SEPARATE, finish, limits, slots_on

MIB = 1 << 20
V1 = (*SEPARATE, "hugetlb")
FILES = {FakeV2: "unified", FakeV1: "hugetlb"}
WORDS = {FakeV2: "max", FakeV1: "limit_in_bytes"}
KERNELS = [
    pytest.param(lambda: FakeV2(controllers="cpu cpuset memory pids hugetlb"), id="v2"),
    pytest.param(lambda: FakeV1(V1), id="v1"),
]


def limit(kernel: FakeKernel, group: dict[str, str], size: str) -> str:
    directory = group[FILES[type(kernel)]]
    return kernel.read(f"{directory}/hugetlb.{size}.{WORDS[type(kernel)]}")


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_what_is_not_given_cannot_be_had(make_kernel: object, tmp_path: Path) -> None:
    kernel = make_kernel()  # type: ignore[operator]
    slots = slots_on(kernel, tmp_path)
    report = slots.create(limits(hugepages={"2MB": 64 * MIB}))
    assert report["hugepages"] == "hard"
    group = slots.driver.slot("a.1")
    assert limit(kernel, group, "2MB") == str(64 * MIB)
    assert limit(kernel, group, "1GB") == "0"
    finish(slots.resize(limits(hugepages={"2MB": 32 * MIB})))
    assert limit(kernel, group, "2MB") == str(32 * MIB)


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_a_slot_that_was_made_before_there_was_such_a_limit_gets_none(
    make_kernel: object, tmp_path: Path
) -> None:
    kernel = make_kernel()  # type: ignore[operator]
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    assert limit(kernel, slots.driver.slot("a.1"), "2MB") == "0"


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_a_limit_that_does_not_stick_is_a_failed_carve(make_kernel: object, tmp_path: Path) -> None:
    kernel = make_kernel()  # type: ignore[operator]
    slots = slots_on(kernel, tmp_path)
    directory = slots.driver.slot("a.1")[FILES[type(kernel)]]
    kernel.ignore_writes.add(f"{directory}/hugetlb.2MB.{WORDS[type(kernel)]}")
    with pytest.raises(Fault) as caught:
        slots.create(limits(hugepages={"2MB": 64 * MIB}))
    assert caught.value.reason == "CARVE_FAILED"
    assert "hugetlb.2MB" in caught.value.message


@pytest.mark.parametrize("kernel", [FakeV2(), FakeV1(SEPARATE)], ids=["v2", "v1"])
def test_without_the_controller_it_is_said_so(kernel: FakeKernel, tmp_path: Path) -> None:
    report = slots_on(kernel, tmp_path).create(limits(hugepages={"2MB": 64 * MIB}))
    assert report["hugepages"] == "none"


def test_where_systemd_hands_it_to_nobody_root_hands_it_down(tmp_path: Path) -> None:
    """The kernel has the controller, but systemd has not enabled it below the top group."""
    kernel = FakeV2(own="/a.scope", controllers="cpu cpuset memory pids")
    kernel.files[f"{kernel.root}/cgroup.controllers"] += " hugetlb"
    slots = slots_on(kernel, tmp_path)
    assert slots.create(limits(hugepages={"2MB": 64 * MIB}))["hugepages"] == "hard"
    assert limit(kernel, slots.driver.slot("a.1"), "2MB") == str(64 * MIB)


@pytest.mark.parametrize(
    "wrong", [7, [], {"2M": 1}, {"../../x": 1}, {"2MB": -1}, {"2MB": "1"}, {"0MB": 1}]
)
def test_sizes_are_checked(wrong: object) -> None:
    args = {"allocation_id": "a", "generation": 1, "cpu_milli": 1000, "memory_bytes": 1 << 20}
    with pytest.raises(Fault):
        check_request({"verb": "create_slot", "args": {**args, "hugepages": wrong}}, HELPER_VERBS)
