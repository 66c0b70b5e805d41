"""`finegrain up` with real processes: it becomes ready, commands find and use it, it ends, and
nothing is left.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from finegrain_cli.local.leftovers import find_leftovers
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.full]

PRIVILEGES = ("sh", "-c", "id -u; grep CapEff /proc/self/status")
COMMAND = (sys.executable, "-m", "finegrain_cli")


@dataclass
class Up:
    """One that runs, and what it said when it was ready."""

    process: subprocess.Popen[str]
    told: dict[str, Any]

    @property
    def base(self) -> Path:
        """Its temporary directory."""
        return Path(self.told["state_dir"]).parent

    def finegrain(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Another terminal of the same user, without any flag."""
        return subprocess.run(
            [*COMMAND, *args], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def end(self, number: int) -> tuple[int, str]:
        """Sends a signal; returns the exit code and the output."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Waits for the end; returns the exit code and the output."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors

    def leftovers(self) -> list[str]:
        """Processes, cgroups and files that should be gone."""
        state_dir = Path(self.told["state_dir"])
        groups = [group for group in self.groups if group.exists()]
        files = [str(self.base)] if self.base.exists() else []
        return [*find_leftovers(self.base, state_dir, []), *map(str, groups), *files]

    @property
    def groups(self) -> list[Path]:
        """The executors' control groups, whether they exist or not."""
        names = [each["executor_id"] for each in self.told["executors"]]
        mounts = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")]
        return [mount / "finegrain" / name for mount in mounts for name in names]


@contextmanager
def up(*args: str) -> Iterator[Up]:
    """Starts it and waits until it is ready."""
    process = subprocess.Popen(
        [*COMMAND, "up", "-o", "json", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        yield Up(process, json.loads(line))
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        process.communicate(timeout=PATIENCE_S)


@contextmanager
def busy(running: Up, *more: str) -> Iterator[subprocess.Popen[str]]:
    """A slot with a task that would run for a long time."""
    task = subprocess.Popen(
        [*COMMAND, "run", "--cpu", "0.1", "--memory", "32M", *more, "--", "sleep", "1000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if json.loads(running.finegrain("slots", "-o", "json").stdout)["items"]:
                break
        yield task
    finally:
        task.kill()
        task.wait(PATIENCE_S)


def test_two_executors_are_found_used_and_gone() -> None:
    with up("--executors", "2") as running:
        listed = json.loads(running.finegrain("executors", "-o", "json").stdout)["items"]
        ran = running.finegrain("run", "--cpu", "0.1", "--memory", "32M", "--", *PRIVILEGES)
        with busy(running):
            code, said = running.end(signal.SIGINT)

        assert [each["state"] for each in listed] == ["ACTIVE", "ACTIVE"]
        assert {each["executor_id"] for each in listed} == {
            each["executor_id"] for each in running.told["executors"]
        }
        # As root, tasks run as another user, and never have a capability.
        user = str(os.geteuid()) if os.geteuid() else str(pwd.getpwnam("nobody").pw_uid)
        assert ran.stdout.split() == [user, "CapEff:", "0" * 16], ran.stderr
        shared = os.geteuid() != 0
        assert running.told["users"] == ("shared with the daemons" if shared else "separate")
        notes = [note for each in running.told["executors"] for note in each["isolation"]["notes"]]
        assert any("users: shared with the daemons" in note for note in notes) is shared
        assert code == 0, said
        assert "nothing is left behind" in said
        assert running.leftovers() == []
        gone = running.finegrain("jobs", "--manager", running.told["address"])
        assert gone.returncode == 8, gone.stderr
        assert "no cluster of this user runs on this host" in gone.stderr


@pytest.mark.needs("root")
def test_tasks_run_as_root_on_request_and_slots_say_so() -> None:
    with up("--task-user", "root") as running:
        ran = running.finegrain("run", "--cpu", "0.1", "--memory", "32M", "--", "id", "-u")
        assert ran.stdout.strip() == "0", ran.stderr
        assert running.told["users"] == "shared with the daemons"
        (executor,) = running.told["executors"]
        assert "users: shared with the daemons" in executor["isolation"]["notes"][-1]


def test_fake_gpus_are_given_out_shown_and_cordoned() -> None:
    with up("--fake-gpus", "dgx-a100") as running:
        [executor] = [each["executor_id"] for each in running.told["executors"]]
        half = running.finegrain("run", "--gpu", "0.5", "--", "printenv", "FINEGRAIN_DEVICES")
        assert half.returncode == 0, half.stderr
        [share] = json.loads(half.stdout)
        assert (share["type"], share["share"]["gpu-core"]) == ("gpu", 50)
        assert share["share"]["gpu-memory"] == 20 << 30
        both = running.finegrain(
            "run", "--gpu", "2", "--rdma", "1", "--", "printenv", "FINEGRAIN_DEVICES"
        )
        assert [each["type"] for each in json.loads(both.stdout)] == ["gpu", "gpu", "rdma"]
        none = running.finegrain("run", "--", "printenv", "NVIDIA_VISIBLE_DEVICES")
        assert none.stdout.strip() == "void"
        refused = running.finegrain("run", "--gpu", "9", "--", "true")
        assert "INFEASIBLE_NEVER" in refused.stderr
        check_resize(running)
        own = running.finegrain(
            "run", "--gpu", "1", "--env", "CUDA_VISIBLE_DEVICES=0", "--", "true"
        )
        assert "the executor sets it to the GPUs of the slot" in own.stderr
        assert running.finegrain("cordon", f"{executor}/gpu3", "--reason", "hot").returncode == 0
        listed = json.loads(running.finegrain("devices", "-o", "json").stdout)["items"]
        assert len(listed) == 20  # 8 GPUs and 12 NICs
        assert [each["problem"] for each in listed if each["cordoned"]] == ["cordoned: hot"]
        assert {each["lanes"] for each in listed[0]["links"]} == {12}
        assert "NV12 gpu1 gpu2" in running.finegrain("devices", "-o", "wide").stdout
        wrong = running.finegrain("run", "--cpu", "1", "--cpu-limit", "500m", "--", "true")
        assert "--cpu-limit is '500m'; expected 0, or --cpu (1) to" in wrong.stderr
        limit = running.finegrain("groups", "set", "low", "--max", "gpu=2.5")
        assert limit.stdout == "low: weight 1, maximum gpu 2.5\n"
        assert "NV12" in running.finegrain("topo").stdout
        assert running.finegrain("uncordon", f"{executor}/gpu3").returncode == 0
        code, said = running.end(signal.SIGINT)
        assert code == 0, said


def check_resize(running: Up) -> None:
    """A resize keeps the GPUs of a slot, and changes their shares only if `--gpu` says so."""
    with busy(running, "--gpu", "0.5"):
        [slot] = json.loads(running.finegrain("slots", "-o", "json").stdout)["items"]
        larger = running.finegrain("resize", slot["allocation_id"], "--cpu", "0.2")
        assert larger.returncode == 0, larger.stderr
        [after] = json.loads(running.finegrain("slots", "-o", "json").stdout)["items"]
        assert after["assignment"]["devices"] == slot["assignment"]["devices"]
        whole = running.finegrain("resize", slot["allocation_id"], "--gpu", "1")
        assert whole.returncode == 0, whole.stderr
        [after] = json.loads(running.finegrain("slots", "-o", "json").stdout)["items"]
        [before, now] = [each["assignment"]["devices"] for each in (slot, after)]
        assert [each["uuid"] for each in now] == [each["uuid"] for each in before]
        refused = running.finegrain("resize", slot["allocation_id"], "--gpu", "2")
        assert refused.returncode != 0
        assert "--gpu" in refused.stderr


def run_as_guest(login: str, home: Path) -> str:
    """Logs in with the printed command as if with another home; returns who that user then is."""
    environment = {**os.environ, "HOME": str(home), "FINEGRAIN_RUN_DIR": str(home)}
    environment = {key: text for key, text in environment.items() if not key.startswith("XDG_")}
    commands = (
        login.split()[1:],
        ["run", "--cpu", "0.1", "--memory", "32M", "--", "true"],
        ["whoami", "-o", "json"],
    )
    for command in commands:
        done = subprocess.run(
            [*COMMAND, *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["identity"])


def test_what_is_not_enforced_is_said_with_reason_and_fix(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "up", "--isolation", "none"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.strip())
        if line.startswith("Ctrl-C"):
            guest = run_as_guest(next(each for each in lines if "login --token" in each), tmp_path)
            process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert guest == "user/guest"

    told = [line.split(maxsplit=2)[2] for line in lines if line.startswith("not enforced")]
    assert any("memory is booked, but a task can use more" in each for each in told)
    because = next(line for line in lines if line.startswith("because"))
    assert 'to have it enforced: set isolation = "auto"' in because
    assert any(line.startswith("tasks run as") for line in lines)
    assert lines[-1] == "stopped; nothing is left behind"


@pytest.mark.parametrize("part", ["executor", "resource manager"])
def test_the_death_of_a_part_ends_all_of_it(part: str) -> None:
    with up() as running, busy(running):
        note = json.loads(Path(running.told["rm_state_dir"], "endpoint.json").read_text())
        pid = note["pid"] if part == "resource manager" else running.told["executors"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        code, said = running.wait()

        assert code == 1
        assert f"the {part}" in said
        assert "was killed by signal 9" in said
        assert running.leftovers() == []


def test_a_terminal_that_goes_away_ends_it() -> None:
    with up() as running:
        code, _ = running.end(signal.SIGHUP)

        assert code == 0
        assert running.leftovers() == []


def test_its_own_sudden_death_leaves_no_process() -> None:
    with up() as running, busy(running):
        running.end(signal.SIGKILL)

        deadline = time.monotonic() + PATIENCE_S
        left = running.leftovers()
        while left != [str(running.base)] and time.monotonic() < deadline:
            time.sleep(0.1)
            left = running.leftovers()
        assert left == [str(running.base)]
        subprocess.run(["rm", "-r", running.base], check=True)


@pytest.mark.parametrize("flags", [("--revocation", "on"), ()])
def test_revocable_slots_are_taken_back_if_wanted(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not flags:
        monkeypatch.setenv("FINEGRAIN_RM__REVOCATION", "on")
    with up(*flags) as running:
        (executor,) = json.loads(running.finegrain("executors", "-o", "json").stdout)["items"]
        whole = ("--cpu", str(executor["total"]["cpu_milli"] / 1_000), "--memory", "64M")
        with busy(running, *whole, "--revocable") as task:
            assert running.finegrain("run", *whole, "--", "echo", "room").stdout == "room\n"
            assert task.wait(PATIENCE_S) == 123


def test_revocation_is_on_or_off() -> None:
    refused = subprocess.run(
        [*COMMAND, "up", "--revocation", "yes"], capture_output=True, text=True, check=False
    )

    assert refused.returncode == 2
    assert "--revocation is 'yes'; expected on or off" in refused.stderr


def test_a_state_directory_is_taken_up_again(tmp_path: Path) -> None:
    epochs = []
    for _ in range(2):
        with up("--state-dir", str(tmp_path / "kept")) as running:
            epochs.append(json.loads(running.finegrain("status", "-o", "json").stdout)["rm_epoch"])
            names = {each["executor_id"] for each in running.told["executors"]}
            assert running.end(signal.SIGTERM)[0] == 0

    assert epochs == [1, 2]
    assert (tmp_path / "kept/rm/finegrain.db").is_file()
    assert {each.name for each in (tmp_path / "kept/executors").iterdir()} == names


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with up() as running:
        address = running.told["address"]
        second = running.finegrain("up", "--listen", address, "-o", "json")

    assert second.returncode == 1
    assert f"{address} is in use" in json.loads(second.stdout)["message"]


def test_a_state_directory_with_executors_to_look_after(tmp_path: Path) -> None:
    (tmp_path / "providers.toml").touch()
    done = subprocess.run(
        [*COMMAND, "up", "--state-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 1
    assert "use --scale again" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--memory", "lots"), "--memory is 'lots'"),
        (("--executors", "0"), "--executors"),
        (("--executors", "2", "--cpus", "60000"), "--cpus is '60000'"),
        (("--executors", "2", "--scale", "2"), "--executors is 2; expected no --scale"),
        (("--scale", "2", "--cpus", "60000"), "--cpus is '60000'"),
        (("--idle-timeout", "1s"), "--scale MAX as well"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_a_usage_error(arguments: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        [*COMMAND, "up", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 2
    assert told in done.stderr
