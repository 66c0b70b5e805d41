"""A task can open the device files of its slot and no other device files, whichever way it was
started.

The devices are of a configured type. Their device files behave like /dev/zero and /dev/full.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.e2e.driving import (
    Daemon,
    Daemons,
    eventually,
    finish,
    helper_pid,
    read_until,
    unique,
)
from tests.support.nvml.fake_driver import FakeDriver

pytestmark = [pytest.mark.slow, pytest.mark.needs("root", "cgroup-v1")]

SMALL = ("--cpu", "0.1", "--memory", "32M")


@dataclass
class Host:
    """An executor that gives out two devices of the type npu, and a resource manager."""

    daemons: Daemons
    executor: Daemon
    folder: Path

    def script(self, *paths: str) -> str:
        """Prints, on one line, which files can be opened. By default, these are the files of the
        devices.
        """
        files = paths or (f"{self.folder}/npu0", f"{self.folder}/npu1")
        each = 'head -c 1 "$f" >/dev/null 2>&1 && r="$r opened" || r="$r refused"'
        return f"r=; for f in {' '.join(files)}; do {each}; done; echo $r"

    def run(self, *options: str, script: str = "") -> str:
        command = ("--", "sh", "-c", script or self.script())
        outcome = self.daemons.cli("run", *SMALL, *options, *command)
        assert outcome.code == 0, outcome.stderr
        return outcome.text.strip()


@pytest.fixture
def host(daemons: Daemons, home: Path) -> Host:
    folder = home / unique("dev")
    folder.mkdir()
    for name, minor in (("npu0", 5), ("npu1", 7)):
        os.mknod(folder / name, stat.S_IFCHR | 0o600, os.makedev(1, minor))
    config = folder / "finegrain.toml"
    config.write_text(f'[devices.npu]\npaths = ["{folder}/npu*"]\n')
    return started(daemons, folder, {"FINEGRAIN_CONFIG": str(config)})


def started(daemons: Daemons, folder: Path, environment: dict[str, str]) -> Host:
    name = unique("devices")
    executor = daemons.executor(name)
    executor.cli = replace(executor.cli, extra=environment)
    daemons.manager.start()
    daemons.manager.endpoint()
    executor.start()
    daemons.await_executors(name)
    return Host(daemons, executor, folder)


def test_what_a_slot_was_not_given_cannot_be_opened_however_the_task_was_started(
    host: Host,
) -> None:
    cli = host.daemons.cli
    # A plain command, with and without a device. Ordinary device files stay as they are; those
    # with the numbers of a device are the device.
    assert host.run("--device", "npu=1") == "opened refused"
    assert host.run("--device", "npu=2") == "opened opened"
    assert host.run() == "refused refused"
    usual = host.script("/dev/null", "/dev/random", "/dev/urandom", "/dev/zero", "/dev/full")
    assert host.run(script=usual) == "opened opened opened refused refused"

    # Commands from a terminal or a pipe, as root, who could make a device file.
    made = b"mknod mine c 1 5 2>/dev/null; head -c 1 mine >/dev/null 2>&1 || echo refused"
    assert cli("run", "-i", *SMALL, "--", "sh", stdin=made).text == "refused\n"

    # A gang, whose members share the host but no device.
    command = ("--", "sh", "-c", host.script())
    gang = cli("run", *SMALL, "--gang", "2", "--device", "npu=1", *command)
    assert gang.code == 0, gang.stderr
    assert sorted(line.split(" ", 1)[1] for line in gang.text.splitlines()) == [
        "opened refused",
        "refused opened",
    ]

    # A batch.
    seen = host.folder / "seen"
    command = ("--", "sh", "-c", f"{{ {host.script()}; }} >> {seen}")
    batch = cli("batch", "--threads", "3", "--quiet", "--device", "npu=1", *SMALL, *command)
    assert batch.code == 0, batch.stderr
    lines = seen.read_text().splitlines()
    assert len(lines) == 3
    assert set(lines) <= {"opened refused", "refused opened"}


def test_a_filter_outlives_resizes_and_the_death_of_helper_and_front(host: Host) -> None:
    cli = host.daemons.cli
    seen, enough = host.folder / "seen", host.folder / "enough"

    def more(what: str) -> None:
        """Waits until the task has tried once more since now."""
        before = len(seen.read_text()) if seen.exists() else 0
        eventually(lambda: seen.exists() and len(seen.read_text()) > before + 30, what)

    script = f"while ! [ -e {enough} ]; do {host.script()}; sleep 0.02; done >> {seen}"
    command = ("run", *SMALL, "--device", "npu=1", "--", "sh", "-c", script)
    process = host.daemons.patient_cli.start(*command)
    more("the task tries")
    (slot,) = cli.items("slots")
    assert slot["isolation"]["device_access"] == "cgroup"
    notes = slot["isolation"].get("notes", [])
    assert not [each for each in notes if not each.startswith("users: shared")]

    resized = cli("resize", slot["allocation_id"], "--memory", "64M")
    assert resized.code == 0, resized.stderr
    more("the task tries after a resize")
    os.kill(helper_pid(host.executor), 9)
    host.executor.kill()
    more("the task tries alone")
    host.executor.start()
    host.executor.endpoint()
    more("the task tries under another helper")
    eventually(lambda: "ACTIVE" in str(cli.items("executors")), "the executor is back")
    assert host.run("--device", "npu=1") == "refused opened"
    enough.touch()
    assert finish(process).code == 0
    assert set(seen.read_text().splitlines()) == {"opened refused"}


def test_devices_that_are_configured_later_are_closed_to_slots_that_exist(host: Host) -> None:
    """The executor learns of a third device at its next start, before it gives it out."""
    cli = host.daemons.cli
    third, enough = host.folder / "npu2", host.folder / "enough"
    os.mknod(third, stat.S_IFCHR | 0o600, os.makedev(1, 9))  # as /dev/urandom
    script = f"{host.script(str(third))}; until [ -e {enough} ]; do sleep 0.02; done; "
    process = host.daemons.patient_cli.start(
        "run", *SMALL, "--", "sh", "-c", script + host.script(str(third))
    )
    assert read_until(process, b"\n") == b"opened\n"
    host.executor.kill()
    host.executor.start()
    host.executor.endpoint()
    eventually(lambda: len(cli.items("devices")) == 3, "all devices are offered")
    enough.touch()
    assert finish(process).stdout == b"refused\n"


@pytest.mark.needs("cc")
def test_gpus_of_a_driver_are_closed_by_their_minors(daemons: Daemons, home: Path) -> None:
    """The driver for tests has no device files. The files that this test makes belong to no driver
    of the kernel. So if the filter lets an open pass, the open fails in another way.
    """
    folder = home / unique("gpu")
    folder.mkdir()
    minors = {"GPU-a": 1, "GPU-b": 0}
    lines = (
        f"gpu {at} {uuid} 00000000:{59 + at:X}:00.0 {minor} 81920 600 NVIDIA H100"
        for at, (uuid, minor) in enumerate(minors.items())
    )
    (folder / "profile").write_text("\n".join(lines) + "\n")
    for minor in (0, 1, 77, 255):
        os.mknod(folder / f"nvidia{minor}", stat.S_IFCHR | 0o600, os.makedev(195, minor))
    os.mknod(folder / "renderD200", stat.S_IFCHR | 0o600, os.makedev(226, 200))
    environment = {
        "LD_LIBRARY_PATH": str(FakeDriver(folder).folder),
        "FAKE_NVML_PROFILE": str(folder / "profile"),
    }
    host = started(daemons, folder, environment)
    attempt = (
        f"for f in {folder}/nvidia* {folder}/render*; do"
        " head -c 1 $f 2>&1 >/dev/null | grep -q 'not permitted' || echo ${f##*/}; done;"
        ' echo "$CUDA_VISIBLE_DEVICES"'
    )

    def opened(*options: str) -> list[str]:
        return host.run(*options, script=attempt).split()

    assert opened() == []
    for options in (("--gpu", "1"), ("--gpu", "0.5"), ("--gpu-memory", "1Gi")):
        *files, uuid = opened(*options)
        assert files == [f"nvidia{minors[uuid]}", "nvidia255"]
    *files, _uuids = opened("--gpu", "2")
    assert files == ["nvidia0", "nvidia1", "nvidia255"]


def test_levels_that_a_request_requires_are_those_of_its_slot(host: Host) -> None:
    strict = ("--require-isolation", "memory=kernel", "--require-isolation", "cpu=kernel")
    assert host.run(*strict, script="echo ran") == "ran"
    # A whole device that only its slot can open is enforced; a share of a device is not.
    whole = ("--device", "npu=1", "--require-isolation", "npu=kernel")
    assert host.run(*whole, script="echo ran") == "ran"
    half = ("--device", "npu=0.5", "--require-isolation", "npu=kernel")
    refused = host.daemons.cli("run", *SMALL, *half, "--", "true")
    assert refused.code == 125
    assert "others have npu: visible-only" in refused.stderr
    unknown = host.daemons.cli("run", *SMALL, "--require-isolation", "npu=kernel", "--", "true")
    assert unknown.code == 125
    assert "expected one of cpu, memory" in unknown.stderr
