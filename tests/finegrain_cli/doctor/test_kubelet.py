"""The findings of the doctor about a kubelet on the same host."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain_cli.config.load import load_configuration
from finegrain_cli.doctor.findings import Finding, Grade
from finegrain_cli.doctor.kubelet import examine_kubelet
from tests.task_executor.host.kubelet.conftest import DATA


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Sixteen cpus, 8 GiB."""
    files = {"sys/devices/system/cpu/online": "0-15", "proc/meminfo": "MemTotal: 8388608 kB"}
    for name, text in files.items():
        path = tmp_path / "machine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path / "machine"


def findings(machine: Path, directory: Path, **settings: str) -> list[Finding]:
    given = {"kubelet_dir": str(directory)} | settings
    environment = {f"FINEGRAIN_EXECUTOR__{name.upper()}": text for name, text in given.items()}
    return list(examine_kubelet(load_configuration(environment=environment).settings, machine))


def test_most_hosts_have_none(machine: Path, tmp_path: Path) -> None:
    (found,) = findings(machine, tmp_path / "none")
    assert (found.grade, found.message) == (Grade.OK, "none on this host")
    assert findings(machine, machine)[0].grade is Grade.OK


def test_one_that_gives_nothing_away_is_no_matter(machine: Path) -> None:
    (found,) = findings(machine, DATA / "none")
    assert found.grade is Grade.OK
    assert "dedicates no cpus to containers" in found.message


def test_cpus_that_both_give_away_are_told_with_the_fix(machine: Path) -> None:
    (found,) = findings(machine, DATA / "v1.23")
    assert found.grade is Grade.WARN
    assert "cpus 2-7,10-15 can be assigned both by the kubelet and to slots" in found.message
    assert "executor.reserved_cpus = 2-7,10-15" in found.fix


def test_who_keeps_apart_is_well(machine: Path) -> None:
    (found,) = findings(machine, DATA / "v1.23", reserved_cpus="2-7,10-15")
    assert found.grade is Grade.OK
    assert "slots have others" in found.message


def test_damage_is_told(machine: Path, tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text('{"policyName":')
    found = findings(machine, tmp_path)
    assert [each.grade for each in found] == [Grade.WARN, Grade.OK]
    assert "damaged" in found[0].message
