"""`finegrain doctor` on hosts with a problem: its finding, and the exact fix."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from finegrain.credentials import write_credentials
from finegrain.errors import Unavailable
from finegrain_cli.doctor.findings import Finding, Grade, examine
from tests.support.cli import Finegrain
from tests.support.identities import credentials

Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def doctor(finegrain: Finegrain, tmp_path: Path) -> Doctor:
    """Runs it with these settings; exit code and findings by name."""

    def run(rm: str = "", client: str = "", executor: str = "") -> tuple[int, dict[str, Any]]:
        listen = 'listen = "127.0.0.1:0"\nmetrics_listen = "none"\n'
        file = tmp_path / "doctor.toml"
        own_rm = "" if "state_dir" in rm else f'state_dir = "{tmp_path / "rm"}"\n'
        file.write_text(
            f"[client]\n{client}\n[rm]\n{own_rm}{rm}\n{'' if 'listen' in rm else listen}"
            f'[executor]\nstate_dir = "{tmp_path / "executor"}"\n{listen}{executor}'
        )
        result = finegrain("doctor", "--config", str(file), "-o", "json")
        items = json.loads(result.stdout)["items"]
        return result.exit_code, {each["name"]: each for each in items}

    return run


def test_an_ordinary_host_fails_nowhere(doctor: Doctor) -> None:
    exit_code, found = doctor()

    assert exit_code == 0
    assert {each["grade"] for each in found.values()} <= {"ok", "warn"}
    assert all(each["fix"] for each in found.values() if each["grade"] != "ok")


@contextmanager
def listening() -> Iterator[int]:
    """A port that another program has bound."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_port_in_use_names_the_process(doctor: Doctor) -> None:
    with listening() as port:
        exit_code, found = doctor(rm=f'listen = "127.0.0.1:{port}"\nmetrics_listen = "none"')

    assert exit_code == 1
    assert found["rm.listen"]["grade"] == "fail"
    assert "in use by process" in found["rm.listen"]["message"]
    assert "set rm.listen to another port" in found["rm.listen"]["fix"]


@pytest.mark.needs("root")
def test_a_process_that_only_looks_like_a_daemon_is_named(doctor: Doctor) -> None:
    """As a task could take the port of a stopped resource manager."""
    squatter = (
        "import os, socket, time; port = socket.create_server(('127.0.0.1', 0));"
        " os.setuid(65534); print(port.getsockname()[1], flush=True); time.sleep(100)"
    )
    with subprocess.Popen(
        ["finegrain", "-c", squatter], executable=sys.executable, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        exit_code, found = doctor(rm=f'listen = "127.0.0.1:{port}"\nmetrics_listen = "none"')
        process.kill()

    said = found["rm.listen"]
    assert (exit_code, said["grade"]) == (1, "fail")
    assert f"in use by process {process.pid} (finegrain -c" in said["message"]
    assert "which is no daemon of finegrain" in said["message"]
    assert f"kill {process.pid}" in said["fix"]


@pytest.mark.parametrize(
    ("task_user", "grade"),
    [("nobody", "ok"), pytest.param("self", "warn", marks=pytest.mark.needs("root"))],
)
def test_it_says_whether_tasks_can_read_keys_of_daemons(
    doctor: Doctor, task_user: str, grade: str
) -> None:
    executor = f'task_user = "{task_user}"\nallow_root_tasks = true'
    _, found = doctor(executor=executor)

    users = found["users"]
    if os.geteuid() != 0:
        grade = "warn"  # without root, all tasks run as this user
    assert users["grade"] == grade
    assert users["message"].startswith("shared with the daemons") is (grade == "warn")


def test_an_address_of_another_host_cannot_be_listened_at(doctor: Doctor) -> None:
    _, found = doctor(rm='listen = "192.0.2.1:7170"\nmetrics_listen = "none"')

    assert found["rm.listen"]["grade"] == "fail"
    assert "an address of this host" in found["rm.listen"]["fix"]


def test_a_damaged_database_is_told(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "rm").mkdir()
    (tmp_path / "rm/finegrain.db").write_bytes(b"not a database")

    exit_code, found = doctor()

    assert exit_code == 1
    assert "is not an SQLite database" in found["database"]["message"]
    assert "db restore" in found["database"]["fix"]


def test_a_database_that_cannot_be_reached_is_told_without_its_password(doctor: Doctor) -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/books?connect_timeout=1"

    _, found = doctor(rm=f'database = "{url}"')

    assert found["database"]["grade"] == "fail"
    assert "hunter2" not in json.dumps(found)


@pytest.mark.parametrize(("mode", "grade"), [(0o600, "ok"), (0o640, "fail")], ids=["0600", "0640"])
def test_a_cluster_key_that_others_can_read(
    doctor: Doctor, tmp_path: Path, mode: int, grade: str
) -> None:
    key = tmp_path / "rm/certificates/ca.key"
    key.parent.mkdir(parents=True)
    key.write_text("x" * 40)
    key.chmod(mode)

    _, found = doctor()

    assert found["authority"]["grade"] == grade
    assert grade == "ok" or found["authority"]["fix"] == f"chmod 0600 {key}"


@pytest.mark.parametrize(
    ("life_s", "grade", "message"),
    [(3_600, "ok", "user/alice of cluster test"), (-60, "fail", "user/alice expired at")],
)
def test_credentials_that_have_expired(
    doctor: Doctor, tmp_path: Path, life_s: float, grade: str, message: str
) -> None:
    file = tmp_path / "alice.credentials"
    write_credentials(file, credentials("user/alice", life_s=life_s))

    _, found = doctor(client=f'credentials = "{file}"')

    assert found["credentials"]["grade"] == grade
    assert message in found["credentials"]["message"]


def test_a_state_directory_that_cannot_be_made(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    exit_code, found = doctor(rm=f'state_dir = "{tmp_path / "file/rm"}"')

    assert exit_code == 1
    assert found["rm.state_dir"]["grade"] == "fail"


def test_nobody_at_the_usual_place_is_a_warning_but_at_a_named_one_a_failure(
    doctor: Doctor, finegrain: Finegrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(budget_s: float) -> None:
        raise Unavailable("connection refused")

    monkeypatch.setattr("finegrain_cli.connection.open_cluster", nobody)

    _, found = doctor()
    named = finegrain("doctor", "--manager", "127.0.0.1:1", "-o", "json")

    assert found["resource manager"]["grade"] in ("ok", "warn")
    last = json.loads(named.stdout)["items"][-1]
    assert last["grade"] == "fail"
    assert "finegrain up" in last["fix"]
    assert named.exit_code == 1


def test_an_examination_that_breaks_is_a_finding_and_not_the_end() -> None:
    def breaks() -> Iterator[Finding]:
        raise OSError("the disk is on fire")

    def works() -> Iterator[Finding]:
        yield Finding("other", Grade.OK, "fine")

    found = list(examine([("broken", breaks), ("other", works)]))

    assert [(each.name, each.grade) for each in found] == [
        ("broken", Grade.FAIL),
        ("other", Grade.OK),
    ]
    assert "on fire" in found[0].message


def test_the_text_puts_each_fix_below_its_finding(finegrain: Finegrain) -> None:
    lines = finegrain("doctor", "--manager", "127.0.0.1:1").stdout.splitlines()

    position = next(i for i, line in enumerate(lines) if line.startswith("FAIL  resource manager"))
    assert lines[position + 1].strip().startswith("fix: `finegrain up` starts a cluster")
    assert lines[-1].endswith("fail")
