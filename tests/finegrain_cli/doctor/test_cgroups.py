"""The findings of the doctor about control groups, on trees of files that simulate hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain_cli.doctor.cgroups import V1_CONTROLLERS, examine_cgroups, read_groups
from finegrain_cli.doctor.findings import Finding, Grade


def v1_host(root: Path, controllers: tuple[str, ...] = V1_CONTROLLERS, own: str = "/") -> Path:
    """A host with one hierarchy per controller."""
    (root / "proc/self").mkdir(parents=True)
    mounts, groups = [], []
    for number, name in enumerate(controllers):
        (root / f"sys/fs/cgroup/{name}{own}").mkdir(parents=True)
        line = f"{number} 1 0:{number} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
        mounts.append(line)
        groups.append(f"{number}:{name}:{own}")
    (root / "proc/self/mountinfo").write_text("\n".join(mounts) + "\n")
    (root / "proc/self/cgroup").write_text("\n".join(groups) + "\n")
    return root


def v2_host(
    root: Path, controllers: str = "cpuset cpu io memory pids", own: str = "/a.scope"
) -> Path:
    """A host with the unified hierarchy; we are in `own`."""
    group = root / f"sys/fs/cgroup{own}"
    group.mkdir(parents=True)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text("1 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (root / "proc/self/cgroup").write_text(f"0::{own}\n")
    (group / "cgroup.controllers").write_text(controllers + "\n")
    for name in ("cgroup.procs", "cgroup.subtree_control"):
        (group / name).write_text("")
    return root


def findings(root: Path) -> dict[str, Finding]:
    """Returns the findings by name. If a name occurs several times, the last finding counts."""
    return {each.name: each for each in examine_cgroups(root)}


def test_v1_with_all_controllers_is_well(tmp_path: Path) -> None:
    found = findings(v1_host(tmp_path, own="/jobs"))

    assert {each.grade for each in found.values()} == {Grade.OK}
    assert "version 1" in found["cgroups"].message
    assert list((tmp_path / "sys/fs/cgroup/cpu/jobs").iterdir()) == []


def test_v1_without_a_controller_says_which_limit_is_missing(tmp_path: Path) -> None:
    found = findings(
        v1_host(tmp_path, controllers=("cpu", "cpuacct", "cpuset", "memory", "freezer"))
    )

    assert found["cgroup controllers"].grade is Grade.WARN
    assert "pids" in found["cgroup controllers"].message
    assert "mount -t cgroup -o pids" in found["cgroup controllers"].fix


def test_a_hierarchy_where_nothing_can_be_made_means_no_isolation(tmp_path: Path) -> None:
    root = v1_host(tmp_path)
    (root / "sys/fs/cgroup/memory").rmdir()

    found = findings(root)["isolation"]

    assert found.grade is Grade.WARN
    assert "isolation none" in found.message
    assert found.fix


def test_v2_delegated_to_us_is_well(tmp_path: Path) -> None:
    found = findings(v2_host(tmp_path))

    assert {each.grade for each in found.values()} == {Grade.OK}
    assert "a.scope" in found["cgroups"].message


@pytest.mark.parametrize("missing", ["cgroup.procs", "cgroup.subtree_control"])
def test_v2_not_delegated_names_the_scope(tmp_path: Path, missing: str) -> None:
    root = v2_host(tmp_path)
    (root / "sys/fs/cgroup/a.scope" / missing).unlink()

    found = findings(root)["isolation"]

    assert found.grade is Grade.WARN
    assert missing in found.message
    assert "systemd-run --user --scope" in found.fix


def test_v2_without_controllers_says_how_to_delegate_them(tmp_path: Path) -> None:
    found = findings(v2_host(tmp_path, controllers="memory pids"))

    assert "cpu, cpuset" in found["cgroup controllers"].message
    assert "Delegate=" in found["cgroup controllers"].fix


def test_a_host_without_control_groups_is_a_warning_with_a_fix(tmp_path: Path) -> None:
    found = findings(tmp_path)

    assert found["cgroups"].grade is Grade.WARN
    assert "mount cgroup2" in found["cgroups"].fix


def test_a_container_sees_its_group_at_the_mounts_root(tmp_path: Path) -> None:
    root = v1_host(tmp_path, controllers=("cpu",))
    line = "1 1 0:1 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    (root / "proc/self/mountinfo").write_text(line)
    (root / "proc/self/cgroup").write_text("1:cpu:/docker/abc\n")

    assert read_groups(root).v1["cpu"] == root / "sys/fs/cgroup/cpu"
