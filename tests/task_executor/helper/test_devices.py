"""A slot cannot open device files that it was not given: the rules, and what they set in
kernels.
"""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from task_executor.helper.cgroups import devices
from task_executor.helper.cgroups.devices import program_of
from task_executor.helper.protocol import HELPER_VERBS, Fault, check_request
from task_executor.helper.slots import Slots
from tests.task_executor.helper.fake_cgroups import FakeKernel, FakeV1, FakeV2
from tests.task_executor.helper.test_cgroup_drivers import SEPARATE, finish, limits, slots_on

V1 = (*SEPARATE, "devices")
KERNELS = [pytest.param(FakeV2, id="v2"), pytest.param(lambda: FakeV1(V1), id="v1")]

GPUS = {"c 195": "1,255", "c 226": ""}
SHARED = {"c 10": "58", "b 7": "3"}


def run(program: bytes, device: str) -> bool:
    """Runs the filter program as the kernel does, for a device such as "c 195:0"; returns whether
    it allows access.
    """
    kind, _, number = device.partition(" ")
    major, _, minor = number.partition(":")
    word = 0x60000 | {"b": 1, "c": 2}[kind]  # to be read and written
    context = struct.pack("<III", word, int(major), int(minor))
    registers, at = [0] * 11, 0
    while True:
        code, both, jump, value = struct.unpack_from("<BBhi", program, at * 8)
        target, source = both & 15, both >> 4
        at += 1
        if code == 0x61:
            assert source == 1
            registers[target] = struct.unpack_from("<I", context, value + jump)[0]
        elif code == 0x54:
            registers[target] &= value
        elif code == 0xB7:
            registers[target] = value
        elif code in (0x15, 0x55):
            at += jump if (registers[target] == value) is (code == 0x15) else 0
        else:
            assert code == 0x95
            return bool(registers[0])


def may_open(kernel: FakeKernel, slots: Slots, device: str) -> bool:
    """Returns whether the kernel lets a task of slot a.1 open the device."""
    group = slots.driver.slot("a.1")
    if isinstance(kernel, FakeV2):
        return run(kernel.programs[group["unified"]], device)
    allowed = kernel.read(f"{group['devices']}/devices.list").splitlines()
    kind, major = device.partition(":")[0].split()
    return bool(
        {"a *:* rwm", f"{device} rwm", f"{kind} {major}:* rwm", f"{kind} *:* rwm"} & {*allowed}
    )


def opened(kernel: FakeKernel, slots: Slots, *devices: str) -> list[str]:
    return [each for each in devices if may_open(kernel, slots, each)]


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_only_what_a_slot_was_given_opens_and_all_else_stays_as_it_is(
    make_kernel: Any, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits(devices_open=GPUS, devices_closed=SHARED))
    assert slots.driver.devices_problem == ""
    gpus = ("c 195:0", "c 195:1", "c 195:2", "c 195:255", "c 226:128")
    assert opened(kernel, slots, *gpus) == ["c 195:1", "c 195:255"]
    others = ("c 10:58", "c 10:229", "b 7:3", "b 7:0", "b 195:0", "c 1:3", "c 136:0", "b 259:0")
    assert opened(kernel, slots, *others) == [
        each for each in others if each not in ("c 10:58", "b 7:3")
    ]


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_a_gpu_that_appears_later_is_closed_already(make_kernel: Any, tmp_path: Path) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits(devices_open=GPUS))
    assert opened(kernel, slots, "c 195:77", "c 226:300", "c 500:0") == ["c 500:0"]


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_a_slot_is_made_before_anything_was_to_be_guarded_and_is_closed_later(
    make_kernel: Any, tmp_path: Path
) -> None:
    """A running task can use the devices that it keeps at every moment of the change."""
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits())
    assert opened(kernel, slots, "c 195:0", "b 8:0", "c 1:3") == ["c 195:0", "b 8:0", "c 1:3"]
    usual = ("c 1:3", "c 5:0", "c 195:1", "b 8:0")
    missing: list[str] = []

    def watch(_path: str, _value: str) -> None:
        missing.extend(each for each in usual if not may_open(kernel, slots, each))

    kernel.before_write = watch
    finish(slots.resize(limits(devices_open=GPUS)))
    finish(slots.resize(limits(devices_open={"c 195": "1-2"}, devices_closed=SHARED)))
    assert missing == []
    assert opened(kernel, slots, "c 195:0", "c 195:2", "c 226:1", "c 10:58") == [
        "c 195:2",
        "c 226:1",
    ]
    finish(slots.resize(limits()))
    assert opened(kernel, slots, "c 195:0", "c 10:58") == ["c 195:0", "c 10:58"]


@pytest.mark.parametrize("make_kernel", KERNELS)
def test_a_helper_that_starts_again_closes_what_its_slots_were_not_given(
    make_kernel: Any, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    slots.create(limits(devices_open=GPUS))
    group = slots.driver.slot("a.1")
    if isinstance(kernel, FakeV2):
        kernel.programs[group["unified"]] = program_of({})
    else:
        kernel.write(f"{group['devices']}/devices.allow", "c 195:* rwm")
    slots.driver.unlock()
    again = slots_on(kernel, tmp_path)
    assert again.adopt() == []
    assert opened(kernel, again, "c 195:0", "c 195:1") == ["c 195:1"]


def test_a_list_that_reads_back_otherwise_is_a_failed_carve(tmp_path: Path) -> None:
    kernel = FakeV1(V1)
    slots = slots_on(kernel, tmp_path)
    kernel.ignore_writes.add(f"{slots.driver.slot('a.1')['devices']}/devices.allow")
    with pytest.raises(Fault, match=r"devices\.list differs") as caught:
        slots.create(limits(devices_open=GPUS))
    assert caught.value.reason == "CARVE_FAILED"
    assert not slots.limits


def test_a_filter_that_the_kernel_refuses_is_a_failed_carve(tmp_path: Path) -> None:
    kernel = FakeV2()
    slots = slots_on(kernel, tmp_path)
    kernel.filter_error = errno.E2BIG
    with pytest.raises(Fault, match="rejected the device filter") as caught:
        slots.create(limits(devices_open=GPUS))
    assert caught.value.reason == "CARVE_FAILED"


def no_bpf() -> FakeKernel:
    kernel = FakeV2()
    kernel.filter_error = errno.EPERM
    return kernel


def in_a_container() -> FakeKernel:
    kernel = FakeV1(V1)
    for path in [path for path in kernel.files if path.endswith("/devices.list")]:
        kernel.files[path] = "c 1:3 rwm\nc 5:0 rwm"
    return kernel


@pytest.mark.parametrize(
    ("make_kernel", "problem", "fix"),
    [
        pytest.param(
            no_bpf, "does not accept a filter of devices", "as root", id="v2 without root"
        ),
        pytest.param(lambda: FakeV1(SEPARATE), "not mounted", "mount it", id="v1 not mounted"),
        pytest.param(
            in_a_container, "may not open some", "outside|container", id="v1 in a container"
        ),
    ],
)
def test_where_devices_cannot_be_closed_the_report_says_why(
    make_kernel: Any, problem: str, fix: str, tmp_path: Path
) -> None:
    kernel = make_kernel()
    slots = slots_on(kernel, tmp_path)
    report = slots.create(limits(devices_open=GPUS))
    assert report["driver"] in ("v1", "v2")
    why, _, way_out = slots.driver.devices_problem.partition("; ")
    assert problem in why
    assert any(word in way_out for word in fix.split("|"))


def test_an_architecture_whose_system_call_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_CALL", 0)
    with pytest.raises(OSError, match="devices cannot be filtered on") as caught:
        devices.attach(str(tmp_path), program_of({}))
    assert caught.value.errno == errno.ENOSYS


MINORS = st.lists(st.integers(0, 12), unique=True, max_size=6)
MAJORS = [f"{kind} {number}" for kind in "bc" for number in range(4)]


@given(
    rules=st.dictionaries(st.sampled_from(MAJORS), st.tuples(st.booleans(), MINORS)),
    device=st.tuples(st.sampled_from(MAJORS), st.integers(0, 12)),
)
def test_the_program_decides_as_the_rules_are_written(
    rules: dict[str, tuple[bool, list[int]]], device: tuple[str, int]
) -> None:
    found = {
        f"devices_{'open' if opens else 'closed'}": {
            major: ",".join(map(str, minors))
            for major, (way, minors) in rules.items()
            if way is opens
        }
        for opens in (True, False)
    }
    major, minor = device
    opens, minors = rules.get(major, (False, []))
    assert run(program_of(found), f"{major}:{minor}") is ((minor in minors) is opens)


@pytest.mark.parametrize(
    "wrong",
    [
        *(7, [], {"195": "0"}, {"c 195:0": ""}, {"c *": ""}, {"c 1": 3}, {"c 1": [0]}),
        *({"c 1": "-1"}, {"c 1": f"{1 << 20}"}, {"c 1": "*"}, {"c 1": "3-2"}, {"c 1": "0-1024"}),
        {f"c {n}": "" for n in range(65)},
    ],
)
@pytest.mark.parametrize("field", ["devices_open", "devices_closed"])
def test_rules_that_no_kernel_knows_are_refused(field: str, wrong: object) -> None:
    args = limits(pids_max=None) | {field: wrong}
    with pytest.raises(Fault, match=field):
        check_request({"verb": "create_slot", "args": args}, HELPER_VERBS)
