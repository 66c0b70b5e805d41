"""The device agent, which limits the memory of GPUs, with a driver for tests and with files like
those of dmem.
"""

from __future__ import annotations

import ast
import ctypes
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from task_executor import device_agent
from tests.support.nvml.fake_driver import FakeDriver

GPUS = """\
gpu 0 GPU-a 00000000:3B:00.0 1 81920 600 NVIDIA A100
gpu 1 GPU-b 00000000:5E:00.0 0 81920 600 NVIDIA A100
"""
GIB = 1 << 30
REGION = "drm/0000:03:00.0/vram"


class Agent:
    """Executes the agent as the helper does, with a driver."""

    def __init__(self, driver: FakeDriver, folder: Path) -> None:
        self.driver, self.profile = driver, folder / "profile"
        self.group = folder / "group"
        self.group.mkdir()
        self.plays("")

    def plays(self, more: str) -> None:
        self.profile.write_text(GPUS + more)

    def obeys(self, *limits: Mapping[str, int], group: Path | None = None) -> list[Any]:
        path = str(group or self.group)
        order = {"groups": [{"path": path, "limits": each} for each in limits]}
        library, profile = str(self.driver.folder), str(self.profile)
        env = {"LD_LIBRARY_PATH": library, "FAKE_NVML_PROFILE": profile}
        done = subprocess.run(
            [sys.executable, "-S", "-m", "task_executor.device_agent"],
            env=env,
            input=json.dumps(order),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        problems: list[Any] = json.loads(done.stdout)["problems"]
        return problems


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def agent(driver: FakeDriver, tmp_path: Path) -> Agent:
    return Agent(driver, tmp_path)


@pytest.mark.needs("cc", "root")
def test_a_limit_is_set_and_a_limit_of_nothing_removes_it(agent: Agent) -> None:
    assert agent.obeys({"GPU-a": 40 * GIB, "GPU-b": GIB}) == [{}]
    set_again = agent.obeys({"GPU-a": 20 * GIB}, {"GPU-a": 0})
    assert set_again == [{}, {}]
    lines = agent.profile.with_name("profile.limits").read_text().splitlines()
    # The agent sets only the limit, and guarantees no memory (the soft limit is 0).
    limits = [(line.split()[0], *map(int, line.split()[3:])) for line in lines]
    assert limits == [
        ("GPU-a", 0, 40 * GIB),
        ("GPU-b", 0, GIB),
        ("GPU-a", 0, 20 * GIB),
        ("GPU-a", 0, device_agent.NO_LIMIT),
    ]


@pytest.mark.needs("cc", "root")
@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("error nvmlInitWithFlags -1 9", "nvmlInitWithFlags failed with code 9"),
        ("error nvmlDeviceGetHandleByUUID 0 15", "nvmlDeviceGetHandleByUUID failed with code 15"),
        ("error nvmlDeviceSetMemoryLimits_v1 0 3", "MemoryLimits_v1 failed with code 3"),
        ("error nvmlDeviceSetMemoryLimits_v1 0 4", "MemoryLimits_v1 failed with code 4"),
        ("error nvmlDeviceSetMemoryLimits_v1 0 999", "MemoryLimits_v1 failed with code 999"),
        ("error nvmlDeviceGetMemoryLimits_v1 0 17", "nvmlDeviceGetMemoryLimits_v1 failed with"),
        ("ignores_limits 0", "nvmlDeviceGetMemoryLimits_v1 failed with code 6"),
    ],
)
def test_what_fails_is_said_and_keeps_no_other_gpu_from_its_limit(
    broken: str, problem: str, agent: Agent
) -> None:
    agent.plays(broken + "\n")
    [failed] = agent.obeys({"GPU-a": GIB, "GPU-b": GIB})
    assert problem in failed["GPU-a"]
    assert ("GPU-b" in failed) == ("-1" in broken)


@pytest.mark.needs("cc", "root")
def test_a_limit_that_the_driver_keeps_otherwise(agent: Agent) -> None:
    assert agent.obeys({"GPU-a": 2 * GIB}) == [{}]
    agent.plays("ignores_limits 0\n")
    [failed] = agent.obeys({"GPU-a": GIB})
    words = f"a limit of {GIB} bytes was set, but the driver reports {2 * GIB}"
    assert failed == {"GPU-a": words}


@pytest.mark.needs("cc", "root")
def test_a_group_that_is_gone_and_a_gpu_that_is_not_here(agent: Agent, tmp_path: Path) -> None:
    [failed] = agent.obeys({"GPU-a": GIB}, group=tmp_path / "gone")
    assert "code 17" in failed["GPU-a"]
    [failed] = agent.obeys({"GPU-c": GIB})
    assert "nvmlDeviceGetHandleByUUID failed with code 6" in failed["GPU-c"]


@pytest.mark.needs("cc", "root")
def test_drivers_that_cannot(tmp_path: Path) -> None:
    old = Agent(FakeDriver(tmp_path, is_old=True), tmp_path)
    [failed] = old.obeys({"GPU-a": GIB})
    assert failed["GPU-a"].endswith("update it to version 615 or later")
    (tmp_path / "libnvidia-ml.so.1").unlink()
    [failed] = old.obeys({"GPU-a": GIB})
    assert "libnvidia-ml.so.1" in failed["GPU-a"]


def test_the_structures_are_those_of_the_binding() -> None:
    pairs = (
        (device_agent.SetLimits, pynvml.c_nvmlSetMemoryLimits_v1_t),
        (device_agent.GetLimits, pynvml.c_nvmlGetMemoryLimits_v1_t),
    )
    for mine, theirs in pairs:
        assert [name for name, _ in mine._fields_] == [name for name, _ in theirs._fields_]
        assert ctypes.sizeof(mine) == ctypes.sizeof(theirs)
    assert device_agent.NO_LIMIT == pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX


def test_it_imports_the_standard_library_only() -> None:
    """It runs as root, and without the packages of the environment."""
    names = set()
    for node in ast.walk(ast.parse(Path(device_agent.__file__).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


# -- dmem ------------------------------------------------------------------------------------------


def obeys(group: Path, limits: Mapping[str, int]) -> dict[str, str]:
    answer = device_agent.obey({"groups": [{"path": str(group), "limits": limits}]})
    problems: dict[str, str] = answer["problems"][0]
    return problems


def test_a_region_is_limited_by_the_file_of_its_group(tmp_path: Path) -> None:
    file = tmp_path / "dmem.max"
    file.write_text(f"{REGION} max\n")
    assert obeys(tmp_path, {REGION: 8 * GIB}) == {}
    assert file.read_text() == f"{REGION} {8 * GIB}\n"
    assert obeys(tmp_path, {REGION: 0}) == {}
    assert file.read_text().startswith(f"{REGION} max\n")


def test_a_group_without_the_controller_gets_no_file(tmp_path: Path) -> None:
    failed = obeys(tmp_path, {REGION: GIB})
    assert failed == {REGION: "the kernel's dmem controller is not enabled for the slot"}
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_keeps_something_else(tmp_path: Path) -> None:
    (tmp_path / "dmem.max").symlink_to("/dev/null")  # accepts every write, and reads as empty
    failed = obeys(tmp_path, {REGION: GIB})
    words = f"{tmp_path}/dmem.max: wrote {REGION} {GIB}, but read back None"
    assert failed == {REGION: words}
    (tmp_path / "dmem.max").unlink()
    (tmp_path / "dmem.max").mkdir()
    assert obeys(tmp_path, {REGION: GIB}) == {REGION: f"{tmp_path}/dmem.max: Is a directory"}
