"""`finegrain run` on GPUs of a test driver: failures, and measured use."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.driving import Daemons, eventually, finish, read_until, unique
from tests.support.nvml.fake_driver import FakeDriver
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.needs("cc", "root")]

SMALL = ("--cpu", "0.1", "--memory", "32M", "--gpu", "1")
A = "gpu 0 GPU-a 00000000:3B:00.0 0 81920 600 NVIDIA A100\n"
B = "gpu 1 GPU-b 00000000:5E:00.0 1 81920 600 NVIDIA A100\nrecovery 1 0\n"
WORK = 'echo started $$ "$CUDA_VISIBLE_DEVICES"; read end || true'


class GpuRuns:
    """A resource manager, and an executor with two GPUs."""

    def __init__(self, daemons: Daemons, folder: Path) -> None:
        self.cli, self.profile = daemons.cli, folder / "profile"
        self.plays()

    def plays(self, recovery: int = 0, lines: str = "") -> None:
        """The driver's state from now on: the recovery action of GPU-a, and processes."""
        fresh = self.profile.with_name("fresh")
        fresh.write_text(f"{A}recovery 0 {recovery}\n{B}{lines}")
        fresh.replace(self.profile)

    def start(self, *options: str) -> tuple[subprocess.Popen[bytes], str]:
        """Starts a command; returns it and its process number."""
        command = ("run", *SMALL, "-i", *options, "--", "sh", "-c", WORK)
        process = self.cli.start(*command, stdin=subprocess.PIPE)
        said = read_until(process, b"GPU-a").decode()
        return process, said.split("started ")[1].split()[0]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def runs(daemons: Daemons, home: Path, driver: FakeDriver) -> GpuRuns:
    folder = home / unique("gpus")
    folder.mkdir()
    found = GpuRuns(daemons, folder)
    name = unique("gpus")
    executor = daemons.executor(name)
    nvml = {"LD_LIBRARY_PATH": str(driver.folder), "FAKE_NVML_PROFILE": str(found.profile)}
    executor.cli = replace(executor.cli, extra=nvml)
    daemons.manager.start()
    daemons.manager.endpoint()
    executor.start()
    daemons.await_executors(name)
    return found


def test_a_command_starts_again_on_another_gpu_after_its_own_has_failed(runs: GpuRuns) -> None:
    process, _ = runs.start("--restart-on-device-loss")
    runs.plays(recovery=1)  # the driver asks for a reset
    read_until(process, b"GPU-b")
    outcome = finish(process)
    assert outcome.code == 0
    assert "a device of the slot failed; the command starts again in another slot" in outcome.stderr


def test_without_it_the_command_goes_on(runs: GpuRuns) -> None:
    process, _ = runs.start()
    runs.plays(recovery=1)

    def is_shown() -> bool | None:
        return b"unhealthy" in runs.cli("slots", "-o", "wide").stdout or None

    eventually(is_shown, "the failure is seen")
    assert finish(process).code == 0


def test_stats_show_the_most_memory_of_gpus(runs: GpuRuns) -> None:
    process, pid = runs.start("--stats")

    def measured(mib: int) -> None:
        runs.plays(lines=f"process 0 {pid} {mib}\n")
        text = f"uses {mib}Mi".encode()
        eventually(lambda: text in runs.cli("slots", "-o", "wide").stdout or None, "it is measured")

    measured(300)
    measured(100)
    outcome = finish(process)
    assert outcome.code == 0
    assert ", of GPUs 300Mi, cpu time" in outcome.stderr


def test_a_running_command_gets_another_share_of_its_gpu(runs: GpuRuns) -> None:
    process, pid = runs.start("--gpu", "0.5")
    [slot] = [each["allocation_id"] for each in runs.cli.items("slots")]

    def uses(mib: int) -> None:
        runs.plays(lines=f"process 0 {pid} {mib}\n")
        text = f"uses {mib // 1024}Gi".encode()
        eventually(lambda: text in runs.cli("slots", "-o", "wide").stdout or None, "it is measured")

    def amounts() -> dict[str, int]:
        [found] = runs.cli.items("slots")
        [share] = found["assignment"]["devices"]
        return {name: share["amounts"][name] for name in ("gpu-core", "gpu-memory-ratio")}

    uses(30 * 1024)
    refused = runs.cli("resize", slot[:12], "--gpu", "0.2")
    assert refused.code != 0
    assert "its tasks use 30Gi of the memory of gpu0, more than the 15.9Gi of its new share" in (
        refused.stderr
    )
    assert amounts() == {"gpu-core": 50, "gpu-memory-ratio": 50}
    for wrong, text in (("1.5", "--gpu is '1.5'"), ("2", "other amounts of the same devices")):
        refused = runs.cli("resize", slot, "--gpu", wrong)
        assert refused.code != 0
        assert text in refused.stderr
    # Amounts that are not named stay the same.
    changed = runs.cli("resize", slot, "--gpu-core", "30")
    assert changed.code == 0, changed.stderr
    assert amounts() == {"gpu-core": 30, "gpu-memory-ratio": 50}
    assert runs.cli("resize", slot, "--gpu-memory-ratio", "40").code == 0
    assert amounts() == {"gpu-core": 30, "gpu-memory-ratio": 40}
    # The smaller share also applies to the command that is running.
    runs.plays(lines=f"process 0 {pid} {36 * 1024}\n")
    eventually(lambda: process.poll() is not None or None, "the command is ended")
    outcome = finish(process)
    assert outcome.code != 0
    assert "its slot used 36Gi of the memory of gpu0" in outcome.stderr


def test_a_dry_run_of_a_cordon_says_which_slots_of_the_host_stay_out_of_it(runs: GpuRuns) -> None:
    first, _ = runs.start()
    other = ("run", *SMALL, "--", "sleep", "600")
    second = runs.cli.start(*other)
    plain = runs.cli.start("run", "--cpu", "0.1", "--memory", "32M", "--", "sleep", "600")
    eventually(lambda: len(runs.cli.items("slots")) == 3, "all commands have their slots")
    (name,) = (each["executor_id"] for each in runs.cli.items("executors"))
    found = runs.cli("cordon", f"{name}/gpu0", "--dry-run")
    assert found.code == 0
    assert (
        "1 slot of 1 job stay until they end; another executor has room now for 0 of 1; the cordon"
        " does not concern 1 slot on other devices of this executor and 1 slot without devices"
    ) in " ".join(found.stdout.decode().split())
    for process in (second, plain):
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
    assert finish(first).code == 0
