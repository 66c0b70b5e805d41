"""The audit log in each kind of database: its chain of digests, pruning, and refused calls."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from finegrain.errors import FinegrainError, InvalidArgument, PermissionDenied, Reason
from finegrain.rpc.access import Caller, enter_call
from resource_manager.engine.model.effects import Changes
from resource_manager.service.audit import OTHERS, REFUSALS_MAX, RefusalCounts
from resource_manager.storage import schema, tables
from resource_manager.storage.audit_log import (
    AuditChain,
    AuditedCall,
    Verified,
    local_actor,
    verify,
)
from resource_manager.storage.opening import open_store
from resource_manager.storage.sql_store import SqlStore
from resource_manager.storage.store import Store
from tests.support.identities import identity
from tests.support.stores import OpenStore

ANN = AuditedCall("operator/ann", "DrainExecutor", "host-a")
BOB = AuditedCall("operator/bob", "TerminateJob", "job-1")
REFUSED = PermissionDenied("no", reason=Reason.ROLE_MISSING)


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def chain_of(store: Store, *, entries_max: int = 1_000) -> AuditChain:
    chain = AuditChain(entries_max)
    chain.load(store)
    return chain


def record(store: Store, chain: AuditChain, *calls: AuditedCall) -> None:
    """Stores one batch with entries for these calls."""
    for call in calls:
        chain.add(1_000, call, "ok")
    changes = Changes()
    chain.put_into(changes, store)
    store.commit(changes)


def by_hand(store: Store, statement: sa.ClauseElement) -> None:
    """Changes the database as a person with an SQL prompt would."""
    assert isinstance(store, SqlStore)
    with store._transaction() as connection:
        store._run(connection, str(statement.compile(compile_kwargs={"literal_binds": True})))


def test_entries_are_kept_in_order_and_found_by_actor_and_method(opened: OpenStore) -> None:
    first = opened()
    first.lead("first")
    chain = chain_of(first)
    record(first, chain, ANN, BOB)
    record(first, chain, ANN)
    first.close()
    second = opened()
    second.lead("second")
    record(second, chain_of(second), BOB)

    assert [each.sequence for each in second.read_audit(0, 10)] == [1, 2, 3, 4]
    assert [each.sequence for each in second.read_audit(0, 10, actor="operator/ann")] == [1, 3]
    assert [each.sequence for each in second.read_audit(4, 1, method="TerminateJob")] == [2]
    assert verify(second) == Verified(4, 1, 4)


def test_a_changed_entry_is_found(store: Store) -> None:
    record(store, chain_of(store), ANN, BOB, ANN)
    log = tables.audit
    by_hand(store, sa.update(log).where(log.c.sequence == 2).values(actor="operator/ann"))
    assert verify(store).problem == "entry 2 was changed, or the entry before it"


def test_a_deleted_entry_is_found(store: Store) -> None:
    chain, log = chain_of(store), tables.audit
    record(store, chain, *[ANN] * 5)
    for sequence, missing in ((5, 5), (3, 3), (1, 1)):
        by_hand(store, sa.delete(log).where(log.c.sequence == sequence))
        assert verify(store).problem == f"entry {missing} is missing"
    # Later entries do not hide it, even if the manager has started again.
    record(store, chain_of(store), BOB)
    assert verify(store).problem == "entry 1 is missing"


def test_old_entries_are_deleted_and_the_chain_begins_after_the_last_of_them(store: Store) -> None:
    chain = chain_of(store, entries_max=10)
    for _ in range(25):
        record(store, chain, ANN)
    kept = [each.sequence for each in store.read_audit(0, 100)]
    assert len(kept) <= 10
    assert kept == list(range(kept[0], 26))
    assert verify(store) == Verified(len(kept), kept[0], 25)
    log = tables.audit
    by_hand(store, sa.delete(log).where(log.c.sequence == kept[0]))
    assert verify(store).problem == f"entry {kept[0]} is missing"


def test_a_batch_larger_than_the_limit_keeps_all_its_entries(store: Store) -> None:
    chain = chain_of(store, entries_max=10)
    record(store, chain, ANN)
    record(store, chain, *[BOB] * 30)
    assert verify(store) == Verified(30, 2, 31)
    record(store, chain, ANN)
    assert verify(store).problem == ""
    assert len(store.read_audit(0, 100)) <= 10


def test_refused_calls_of_a_minute_are_one_entry(store: Store) -> None:
    clock = Clock()
    refusals = RefusalCounts(clock)
    chain = chain_of(store)
    enter_call(Caller(identity("user/mallory")))
    for _ in range(1_000):
        refusals.add("/finegrain.v1.ClusterService/DrainExecutor", REFUSED)
    refusals.add("/finegrain.v1.ClusterService/ForgetExecutor", REFUSED)
    refusals.add("/finegrain.v1.ClusterService/DrainExecutor", InvalidArgument("a", "b", "c"))
    assert refusals.take() == []
    clock.now_ms = 60_000
    for call, outcome, count in refusals.take():
        chain.add(60_000, call, outcome, count)
    record(store, chain)
    found = [(each.actor, each.method, each.outcome, each.count) for each in store.read_audit(0, 9)]
    assert found == [
        ("user/mallory", "DrainExecutor", "ROLE_MISSING", 1_000),
        ("user/mallory", "ForgetExecutor", "ROLE_MISSING", 1),
    ]


def test_refusals_of_many_callers_need_bounded_memory() -> None:
    clock = Clock()
    refusals = RefusalCounts(clock)
    for number in range(REFUSALS_MAX + 50):
        enter_call(Caller(identity(f"user/u{number}")))
        refusals.add("/finegrain.v1.ClusterService/DrainExecutor", REFUSED)
    enter_call(Caller())
    clock.now_ms = 60_000
    found = refusals.take()
    assert len(found) == REFUSALS_MAX + 1
    assert found[-1] == (AuditedCall(OTHERS, OTHERS), "ROLE_MISSING", 50)
    refusals.add("/Join", FinegrainError("unrelated"))
    clock.now_ms = 120_000
    assert refusals.take() == []


def test_commands_on_the_managers_host_are_recorded(sqlite_url: str, tmp_path: Path) -> None:
    copy = tmp_path / "backup.db"
    with open_store(sqlite_url) as store:
        store.lead("first")
        record(store, chain_of(store), ANN, BOB)
        schema.backup(sqlite_url, copy)
    schema.raise_epoch(sqlite_url, above_epoch=7)
    with open_store(sqlite_url, read_only=True) as store:
        (raised,) = store.read_audit(0, 1)
        assert (raised.actor, raised.method, raised.object, raised.outcome) == (
            local_actor(),
            "db raise-epoch",
            "8",
            "ok",
        )
        assert verify(store) == Verified(3, 1, 3)

    schema.restore(sqlite_url, copy, above_epoch=9)
    with open_store(sqlite_url) as store:
        store.lead("second")
        (restored,) = store.read_audit(0, 1)
        assert (restored.method, restored.object) == ("db restore", str(copy))
        record(store, chain_of(store), ANN)
        assert verify(store) == Verified(4, 1, 4)
