"""Tests device files on the kernel of this machine, with cgroup v1 and with a tree of cgroup v2."""

from __future__ import annotations

import errno
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.cgroups import devices
from tests.task_executor.helper.conftest import Host, eventually
from tests.task_executor.helper.test_cgroup_v2_kernel import unified, v2_host

__all__ = ["unified", "v2_host"]

pytestmark = [pytest.mark.needs("root")]

TRY = """
for each in /dev/zero /dev/full /dev/random /dev/null; do
    if head -c 1 $each >/dev/null 2>err; then echo $each; else grep -o 'not permitted' err; fi
done
"""
REFUSED = "not permitted"


@pytest.fixture(
    params=[
        pytest.param("host", id="v1", marks=pytest.mark.needs("cgroup-v1")),
        pytest.param("v2_host", id="v2"),
    ]
)
def kernel(request: pytest.FixtureRequest) -> Host:
    value: Host = request.getfixturevalue(request.param)
    return value


async def attempt(host: Host, task_id: str, script: str = TRY) -> list[str]:
    await host.run(script, task_id)
    return host.output(task_id).splitlines()


async def test_a_task_opens_what_its_slot_has_and_nothing_else_that_is_guarded(
    kernel: Host,
) -> None:
    report = (await kernel.client.hello()).isolation
    assert (report.devices, report.devices_problem) == ("cgroup", "")
    limits = await kernel.slot(devices_closed={"c 1": "7"})
    assert await attempt(kernel, "first") == ["/dev/zero", REFUSED, "/dev/random", "/dev/null"]

    # A resize removes this device, and gives another one.
    await kernel.start("read line; " + TRY, "waiting", stdin=True)
    await kernel.client.resize_slot(replace(limits, devices_closed={"c 1": "5"}))
    await kernel.client.write_input("waiting", 0, b"go\n")
    await kernel.exit_of("waiting")
    after = [REFUSED, "/dev/full", "/dev/random", "/dev/null"]
    assert kernel.output("waiting").splitlines() == after
    assert await attempt(kernel, "after") == after

    # Neither the end of the helper nor the next helper opens a device.
    await kernel.start("sleep 0.5; " + TRY, "alone")
    kernel.kill_helper()
    await eventually(lambda: kernel.record("alone")["exit"], "the task has ended")
    assert kernel.output("alone").splitlines() == after
    kernel.restart_helper()
    assert await attempt(kernel, "adopted") == after


async def test_all_of_a_major_but_one_minor(kernel: Host) -> None:
    """This is the rule of a GPU: other devices of the driver are closed, also devices that appear
    later.
    """
    await kernel.slot(devices_open={"c 1": "3,5"})
    assert await attempt(kernel, "task") == ["/dev/zero", REFUSED, REFUSED, "/dev/null"]
    made = await attempt(kernel, "mknod", "mknod one c 1 5 && echo made; mknod two c 1 11; echo $?")
    assert made == ["made", "1"]


async def test_a_slot_leaves_the_devices_of_its_neighbour_alone(kernel: Host) -> None:
    await kernel.slot("slot", devices_closed={"c 1": "5,7"})
    await kernel.slot("other", devices_closed={"c 1": "7"})
    await kernel.run(TRY, "here")
    await kernel.run(TRY, "there", allocation_id="other")
    assert kernel.output("here").splitlines()[:2] == [REFUSED, REFUSED]
    assert kernel.output("there").splitlines()[:2] == ["/dev/zero", REFUSED]


def test_a_filter_that_was_half_replaced_is_replaced_as_a_whole(
    unified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper dies between the two steps: both filters apply until the next helper has started."""
    group = unified / "sys/fs/cgroup/finegrain-half-replaced"
    group.mkdir()
    try:
        devices.attach(str(group), devices.program_of({"devices_closed": {"c 1": "5"}}))
        whole = devices._bpf

        def dies(command: int, *rest: Any) -> int:
            if command == devices._DETACH:
                raise OSError(errno.EINTR, "as if killed")
            return whole(command, *rest)

        monkeypatch.setattr(devices, "_bpf", dies)
        other = devices.program_of({"devices_closed": {"c 1": "7"}})
        with pytest.raises(OSError, match="as if killed"):
            devices.attach(str(group), other)
        assert opened_in(group) == {"/dev/random"}
        monkeypatch.undo()
        devices.attach(str(group), other)
        assert opened_in(group) == {"/dev/zero", "/dev/random"}
    finally:
        group.rmdir()


def opened_in(group: Path) -> set[str]:
    """Returns the devices that a process of this group can open."""
    files = ("/dev/zero", "/dev/full", "/dev/random")
    code = (
        "import sys\n"
        f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"
        f"for each in {files}:\n"
        "    try: open(each, 'rb').close(); print(each)\n"
        "    except PermissionError: pass\n"
    )
    ran = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, check=True)
    return set(ran.stdout.decode().split())
