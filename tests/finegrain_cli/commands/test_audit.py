"""`finegrain audit`: each change by an administrator is recorded together with the change."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from finegrain.credentials import write_credentials
from finegrain.errors import InvalidArgument, PermissionDenied, StoreError
from finegrain.identity import Role
from finegrain.rpc.access import CLUSTER_ACCESS, IDENTITY_ACCESS, OPERATORS
from finegrain.v1 import cluster_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.model.effects import Changes
from resource_manager.service.cluster_service import ClusterServicer
from resource_manager.service.identities.identity_service import IdentityCalls
from resource_manager.storage.sqlite_store import SqliteStore
from tests.support.cli import Finegrain
from tests.support.rm_service import RunningRm, ScriptedExecutor, refusal, running_rm


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path / "rm", join_listen="127.0.0.1:0") as running:
        yield running


class Operator:
    """Runs commands as operator/ann."""

    def __init__(self, finegrain: Finegrain, rm: RunningRm, path: Path) -> None:
        self._finegrain, self._path = finegrain, path
        write_credentials(path, rm.own("operator/ann").credentials)

    async def __call__(self, *arguments: str) -> Any:
        command = (*arguments, "--credentials", str(self._path))
        return await asyncio.to_thread(self._finegrain, *command)

    async def items(self, *arguments: str) -> list[dict[str, Any]]:
        found = await self(*arguments, "-o", "json")
        assert found.exit_code == 0, found.stderr
        items: list[dict[str, Any]] = json.loads(found.stdout)["items"]
        return items


@pytest.fixture
def operator(finegrain: Finegrain, rm: RunningRm, tmp_path: Path) -> Operator:
    return Operator(finegrain, rm, tmp_path / "ann.credentials")


def by_hand(rm: RunningRm, sql: str) -> None:
    """Changes the database as a person with an SQL prompt would."""
    with sqlite3.connect(rm.state_dir / "finegrain.db", timeout=10) as database:
        database.execute(sql)


async def test_changes_of_an_operator_are_listed_with_object_and_outcome(
    rm: RunningRm, operator: Operator
) -> None:
    async with ScriptedExecutor(rm):
        assert (await operator("drain", "host-a")).exit_code == 0
        unknown = cluster_pb2.DrainExecutorRequest(executor_id="host-b")
        await refusal(rm.cluster_as("operator/ann").DrainExecutor(unknown))
    assert (await operator("identity", "deny", "user/mallory", "--yes")).exit_code == 0
    assert (await operator("token", "create", "--executor", "web-1")).exit_code == 0

    found = await operator.items("audit", "list")
    assert [(each["method"], each["object"], each["outcome"]) for each in found] == [
        ("DrainExecutor", "host-a", "ok"),
        ("DrainExecutor", "host-b", "EXECUTOR_UNKNOWN"),
        ("DenyIdentity", "user/mallory", "ok"),
        ("CreateToken", "executor/web-1", "ok"),
    ]
    assert {each["actor"] for each in found} == {"operator/ann"}
    only = await operator.items("audit", "list", "--method", "DenyIdentity")
    assert [each["sequence"] for each in only] == [3]
    assert await operator.items("audit", "list", "--actor", "operator/bob") == []
    assert [each["sequence"] for each in await operator.items("audit", "list", "-n", "2")] == [3, 4]
    assert "user/mallory" in (await operator("audit", "list")).stdout
    events = await operator.items("events")
    assert {each["kind"]: each["actor"] for each in events}["executor_drained"] == "operator/ann"
    assert {each["kind"]: each["actor"] for each in events}["executor_registered"] == (
        "executor/host-a"
    )


async def test_changes_of_an_operator_that_were_refused_early_are_counted(
    rm: RunningRm, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource_manager.service.audit.MINUTE_MS", 1)
    as_ann = rm.cluster_as("operator/ann")
    for _ in range(3):
        bad = cluster_pb2.DrainExecutorRequest(executor_id="host a")
        assert isinstance(await refusal(as_ann.DrainExecutor(bad)), InvalidArgument)
    # A call that only reads is not recorded, even if it was refused.
    await refusal(as_ann.GetExecutor(cluster_pb2.GetExecutorRequest(executor_id="host a")))
    assert (await operator("identity", "allow", "user/nobody")).exit_code != 0

    found: list[dict[str, Any]] = []
    while sum(each["count"] for each in found) < 4:
        await asyncio.sleep(0.05)
        found = await operator.items("audit", "list")
    assert {(each["method"], each["object"], each["outcome"]) for each in found} == {
        ("DrainExecutor", "host a", "INVALID_ARGUMENT"),
        ("AllowIdentity", "user/nobody", "IDENTITY_UNKNOWN"),
    }


async def test_messages_of_an_operator_that_cannot_be_read_are_counted(
    rm: RunningRm, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource_manager.service.audit.MINUTE_MS", 1)
    channel = rm.channel("operator/ann")
    for method, message in (
        ("DrainExecutor", b"no message"),
        ("DrainExecutor", bytes(1 << 20)),
        ("GetExecutor", b"no message"),  # only reads
    ):
        call: Any = channel.unary_unary(f"/finegrain.v1.ClusterService/{method}")
        await refusal(call(message))

    found: list[dict[str, Any]] = []
    while len(found) < 2:
        await asyncio.sleep(0.05)
        found = await operator.items("audit", "list")
    assert {(each["method"], each["object"], each["outcome"]) for each in found} == {
        ("DrainExecutor", "", "INVALID_ARGUMENT"),
        ("DrainExecutor", "", "MESSAGE_TOO_LARGE"),
    }
    assert {each["actor"] for each in found} == {"operator/ann"}


async def test_changes_of_an_operator_at_an_executor_are_recorded(
    rm: RunningRm, operator: Operator
) -> None:
    async with ScriptedExecutor(rm) as executor:
        call = rm_pb2.AdminCall(identity="operator/ann", method="CancelTask", object="task t-1")
        await executor.send_report(admin_calls=[call])
        too_many = await refusal(executor.send_report(admin_calls=[call] * 101))
        assert isinstance(too_many, InvalidArgument)
    (found,) = await operator.items("audit", "list")
    assert (found["actor"], found["method"], found["object"], found["outcome"]) == (
        "operator/ann",
        "CancelTask",
        "host-a: task t-1",
        "ok",
    )


async def test_verify_finds_what_was_changed_by_hand(rm: RunningRm, operator: Operator) -> None:
    for name in ("a", "b", "c"):
        assert (await operator("identity", "deny", f"user/{name}", "--yes")).exit_code == 0
    checked = await operator("audit", "verify")
    assert (checked.exit_code, "entries 1 to 3 are unchanged" in checked.stdout) == (0, True)

    by_hand(rm, "UPDATE audit SET object = 'user/x' WHERE sequence = 2")
    checked = await operator("audit", "verify")
    assert checked.exit_code != 0
    assert "entry 2 was changed" in checked.stderr

    by_hand(rm, "UPDATE audit SET object = 'user/b' WHERE sequence = 2")
    assert (await operator("audit", "verify")).exit_code == 0
    by_hand(rm, "DELETE FROM audit WHERE sequence = 3")
    assert "entry 3 is missing" in (await operator("audit", "verify")).stderr


async def test_a_change_and_its_entry_are_in_one_transaction(
    rm: RunningRm, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, batches = SqliteStore.commit, list[Changes]()

    def recorded(store: SqliteStore, changes: Changes) -> None:
        commit(store, changes)
        batches.append(changes)

    async with ScriptedExecutor(rm):
        monkeypatch.setattr(SqliteStore, "commit", recorded)
        assert (await operator("drain", "host-a")).exit_code == 0
        assert (await operator("identity", "deny", "user/mallory", "--yes")).exit_code == 0
    drains = [each for each in batches if any(one.draining for one in each.executors)]
    denials = [each for each in batches if "denied/user/mallory" in each.metas]
    assert [[entry.method for entry in each.audit] for each in drains[:1]] == [["DrainExecutor"]]
    assert [[entry.method for entry in each.audit] for each in denials] == [["DenyIdentity"]]


async def test_a_failed_commit_leaves_neither_change_nor_entry(
    rm: RunningRm, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, failures = SqliteStore.commit, [StoreError("injected")]
    left: list[tuple[bool, int]] = []

    def failing(store: SqliteStore, changes: Changes) -> None:
        if changes.audit and failures:
            raise failures.pop()
        if changes.audit:
            (executor,) = store.load().executors
            left.append((executor.draining, len(store.read_audit(0, 10))))
        commit(store, changes)

    async with ScriptedExecutor(rm):
        monkeypatch.setattr(SqliteStore, "commit", failing)
        # The client repeats the call, because the first attempt may have had no effect.
        assert (await operator("drain", "host-a")).exit_code == 0
    assert (failures, left) == ([], [(False, 0)])
    assert [each["sequence"] for each in await operator.items("audit", "list")] == [1]
    assert (await operator("audit", "verify")).exit_code == 0


async def test_only_operators_read_the_log(
    rm: RunningRm, finegrain: Finegrain, tmp_path: Path
) -> None:
    path = tmp_path / "alice.credentials"
    write_credentials(path, rm.own("user/alice").credentials)
    for command in ("list", "verify"):
        refused = await asyncio.to_thread(finegrain, "audit", command, "--credentials", str(path))
        assert refused.exit_code != 0
        assert "role operator" in refused.stderr
    assert isinstance(
        await refusal(
            rm.cluster_as_user.DrainExecutor(cluster_pb2.DrainExecutorRequest(executor_id="x"))
        ),
        PermissionDenied,
    )


def test_every_method_that_only_operators_may_call_is_recorded_or_only_reads() -> None:
    assert frozenset((Role.OPERATOR,)) == OPERATORS
    methods = {**CLUSTER_ACCESS, **IDENTITY_ACCESS}
    names = [name.rpartition("/")[2] for name, roles in methods.items() if roles == OPERATORS]
    assert "DrainExecutor" in names
    for name in names:
        method = getattr(ClusterServicer, name, None) or getattr(IdentityCalls, name)
        reads = name.startswith(("List", "Get", "Verify"))
        assert getattr(method, "is_audited", False) is not reads, name
