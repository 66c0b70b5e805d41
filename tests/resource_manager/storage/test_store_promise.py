"""Tests what `Store` promises about rows, on every database."""

from __future__ import annotations

import inspect
import sys
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields, replace
from itertools import chain, pairwise

import pytest

from finegrain.errors import ConfigurationError, InvariantBroken, StoreError
from finegrain.intervals import IntervalSet
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.states import RequestState
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import (
    ClusterEvent,
    Executor,
    Gang,
    GangSpec,
    Group,
    Job,
    JobEvent,
    Provision,
    RangeSpec,
    Request,
    RequestRange,
    RequestSpec,
    Slot,
    UsageRecord,
)
from resource_manager.storage.store import NotLeader, Store
from tests.resource_manager.storage.conftest import MEMORY, ON_BOTH
from tests.support.books import (
    books_of,
    cluster_event,
    everything,
    executor,
    gang,
    job,
    job_event,
    provision,
    request,
    request_range,
    same_books,
    slot,
)
from tests.support.patience import PATIENCE_S
from tests.support.stores import OpenStore


@pytest.fixture(params=(*ON_BOTH, MEMORY))
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind, and one in memory."""
    if request.param == MEMORY:
        return MEMORY
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def test_a_new_database_is_empty_and_knows_who_it_is(store: Store) -> None:
    books = store.load()
    assert (books.jobs, books.requests, books.slots, books.executors) == ([], [], [], [])
    assert books.counters == {}
    assert len(store.meta("cluster_salt") or "") == 64
    assert store.meta("cluster_id")
    assert store.meta("nothing of the kind") is None


def test_everything_comes_back_as_it_was_stored(store: Store, opened: OpenStore) -> None:
    changes = everything()
    store.commit(changes)
    store.close()
    again = opened()
    assert same_books(again.load(), books_of(changes))
    assert again.read_job_events("job-1", 0, 10) == changes.job_events
    assert again.read_cluster_events(1, 10) == changes.cluster_events


def test_the_same_batch_twice_is_the_same_batch_once(store: Store) -> None:
    changes = everything()
    changes.trimmed_job_events = [("job-1", 3)]
    changes.deleted_slots = [("slot-1", 1)]
    store.commit(changes)
    store.commit(changes)
    assert same_books(store.load(), books_of(changes))
    assert store.read_job_events("job-1", 0, 10) == changes.job_events


def test_a_row_is_replaced_by_its_newer_self(store: Store) -> None:
    store.commit(everything())
    newer = Changes(
        jobs=[job(name="weekly", lease_ms=None, specified=None)],
        requests=[request(state=RequestState.LOST, spec=RequestSpec("slot-1", None))],
        executors=[executor(lost=False, draining=False, drain_deadline_time_ms=None)],
        counters={"arrival_number": 8},
    )
    store.commit(newer)
    books = store.load()
    assert newer.jobs[0] in books.jobs
    assert newer.requests[0] in books.requests
    assert newer.executors[0] in books.executors
    assert books.counters["arrival_number"] == 8
    assert len(books.jobs) == 3
    assert len(books.executors) == 2


def test_an_empty_batch_is_no_trouble(store: Store) -> None:
    store.commit(Changes())
    assert store.load().jobs == []


@pytest.mark.parametrize(
    "text",
    ["日本語 und Ünïcödé", "quotes ' \" ; -- %s ? :x {}", "line\nbreak\ttab", "🙂" * 100, "\\x41"],
)
def test_texts_come_back_letter_by_letter(store: Store, text: str) -> None:
    named = job(name=text, group=text)
    labelled = request(spec=RequestSpec("slot-1", None, required_labels=((text, text),)))
    event = job_event(1, message=text, slot={text: [text, {"deep": text}]})
    history = [cluster_event(1, message=text), cluster_event(2, message=f"another {text}")]
    store.commit(Changes([named], [labelled], job_events=[event], cluster_events=history))
    assert store.load().jobs == [named]
    assert store.load().requests == [labelled]
    assert store.read_job_events("job-1", 0, 1) == [event]
    assert store.read_cluster_events(0, 2) == history


def test_amounts_of_any_size_come_back(store: Store) -> None:
    profile = ResourceProfile(cpu_milli=2**53, extended=(("x", 2**62),))
    huge = slot(profile=profile, pids_max=2**63 - 1)
    store.commit(Changes(slots=[huge]))
    assert store.load().slots == [huge]


def test_what_does_not_fit_a_column_is_refused_and_nothing_is_stored(store: Store) -> None:
    with pytest.raises(StoreError):
        store.commit(Changes(jobs=[job()], slots=[slot(pids_max=2**63)]))
    with pytest.raises(StoreError):
        store.commit(Changes(jobs=[job(), job("job-2", name="half a pair \ud800")]))
    assert store.load().jobs == []
    store.commit(Changes(jobs=[job()]))
    assert store.load().jobs == [job()]


def test_rows_that_contradict_each_other_are_refused_as_a_whole(store: Store) -> None:
    with pytest.raises(InvariantBroken, match="nothing was written"):
        store.commit(Changes(jobs=[job()], requests=[request(job_id="no such job")]))
    assert store.load().jobs == []


def test_thousands_of_rows_go_into_one_batch(store: Store) -> None:
    count = 5000
    requests = [
        request(f"slot-{n:05}", arrival_number=n, spec=RequestSpec(f"slot-{n:05}", None))
        for n in range(count)
    ]
    slots = [slot(f"slot-{n:05}") for n in range(count)]
    events = [job_event(n + 1) for n in range(count)]
    store.commit(Changes([job()], requests, slots, job_events=events))
    books = store.load()
    assert sorted(each.arrival_number for each in books.requests) == list(range(count))
    assert len(books.slots) == count
    store.commit(Changes(deleted_slots=[(f"slot-{n:05}", 1) for n in range(count - 1)]))
    assert [each.allocation_id for each in store.load().slots] == [f"slot-{count - 1:05}"]


def test_a_deleted_job_takes_its_requests_and_its_log_along(store: Store) -> None:
    store.commit(everything())
    store.commit(Changes(deleted_jobs=["job-1"]))
    books = store.load()
    assert {each.job_id for each in books.jobs} == {"job-2", "job-3"}
    assert [each.allocation_id for each in books.requests] == ["slot-2"]
    assert store.read_job_events("job-1", 0, 10) == []
    # Its slot may still exist on a host; it is deleted when that is confirmed.
    assert len(books.slots) == 2


def test_a_request_is_forgotten_alone_and_its_id_may_come_back(store: Store) -> None:
    store.commit(everything())
    forgotten = Changes(deleted_requests=["slot-1", "never-was"])
    for _ in range(2):
        store.commit(forgotten)
        assert [each.allocation_id for each in store.load().requests] == ["slot-2"]
    assert {each.job_id for each in store.load().jobs} == {"job-1", "job-2", "job-3"}
    again = request(spec=RequestSpec("slot-1", None), arrival_number=99)
    store.commit(Changes(requests=[again], deleted_requests=["slot-1"]))
    assert again in store.load().requests


def test_a_job_may_be_deleted_in_the_batch_that_touched_it_last(store: Store) -> None:
    store.commit(everything())
    last_words = Changes(
        requests=[request(state=RequestState.RELEASED)],
        job_events=[job_event(10)],
        deleted_jobs=["job-1"],
    )
    store.commit(last_words)
    assert [each.allocation_id for each in store.load().requests] == ["slot-2"]
    assert store.read_job_events("job-1", 0, 10) == []


def test_a_job_that_comes_back_under_a_deleted_id_starts_afresh(store: Store) -> None:
    store.commit(everything())
    store.commit(Changes(jobs=[job(name="new")], deleted_jobs=["job-1"]))
    books = store.load()
    assert job(name="new") in books.jobs
    assert [each.allocation_id for each in books.requests] == ["slot-2"]


def test_a_move_changes_where_rows_stand_and_nothing_else(store: Store) -> None:
    requests = [request(f"slot-{n}") for n in range(3)]
    slots = [slot(f"slot-{n}") for n in range(3)]
    store.commit(Changes(jobs=[job()], executors=[executor()], requests=requests, slots=slots))
    ended = replace(
        requests[1],
        job_id="job-1",
        state=RequestState.LOST,
        reason="TERMINATED",
        message='a "word" and a \\ and an ü',
        generation=7,
        end_time_ms=99,
    )
    freed = replace(slots[2], cpus="4-5", allocated_time_ms=None, isolation=None)
    carved = replace(slots[0], allocated_time_ms=5, isolation=Isolation("quota", notes=("a",)))
    moves = Changes(moved_requests=[ended], moved_slots=[freed, carved])
    for _ in range(2):  # repeating it leaves the same rows
        store.commit(moves)
        books = store.load()
        assert sorted(books.requests, key=lambda each: each.allocation_id) == [
            requests[0],
            ended,
            requests[2],
        ]
        assert sorted(books.slots, key=lambda each: each.allocation_id) == [
            carved,
            slots[1],
            freed,
        ]


def test_a_move_of_what_is_not_stored_is_a_contradiction(store: Store) -> None:
    store.commit(Changes(jobs=[job()], requests=[request("slot-1")]))
    moved = [replace(request(name), generation=9) for name in ("slot-1", "slot-2")]
    with pytest.raises(InvariantBroken, match="2 requests have changed, but only 1 are"):
        store.commit(Changes(moved_requests=moved, counters={"arrival_number": 8}))
    books = store.load()
    assert books.requests == [request("slot-1")]
    assert books.counters == {}


def test_moves_of_a_job_that_is_deleted_are_dropped_with_it(store: Store) -> None:
    store.commit(Changes(jobs=[job()], requests=[request("slot-1")]))
    store.commit(Changes(deleted_jobs=["job-1"], moved_requests=[request("slot-1")]))
    assert store.load().requests == []


def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    store.commit(
        Changes(
            deleted_jobs=["x"],
            deleted_slots=[("x", 1)],
            deleted_executors=["x"],
            trimmed_job_events=[("x", 9)],
            trimmed_cluster_events=9,
        )
    )
    assert store.load().jobs == []


def test_an_executor_and_one_generation_of_a_slot_can_be_deleted(store: Store) -> None:
    store.commit(Changes(slots=[slot(generation=1), slot(generation=2)], executors=[executor()]))
    store.commit(Changes(deleted_slots=[("slot-1", 1)], deleted_executors=["host-a"]))
    books = store.load()
    assert [each.generation for each in books.slots] == [2]
    assert books.executors == []


def test_a_gang_goes_by_itself_or_with_its_job(store: Store) -> None:
    store.commit(Changes(jobs=[job()], gangs=[gang(spec=GangSpec(n)) for n in ("g-1", "g-2")]))
    store.commit(Changes(deleted_gangs=["g-1"]))
    assert [each.gang_id for each in store.load().gangs] == ["g-2"]
    store.commit(Changes(deleted_jobs=["job-1"]))
    assert store.load().gangs == []


def test_an_executor_that_was_asked_for_is_forgotten(store: Store) -> None:
    store.commit(Changes(provisions=[provision(), provision("small-3-2", number=2)]))
    store.commit(Changes(deleted_provisions=["small-3-1"]))
    assert store.load().provisions == [provision("small-3-2", number=2)]


def test_a_job_log_is_read_from_any_position(store: Store) -> None:
    events = [job_event(n) for n in range(1, 8)]
    others = [job_event(n, job_id="job-2") for n in range(1, 4)]
    store.commit(Changes([job(), job("job-2")], job_events=events + others))
    assert store.read_job_events("job-1", 0, 3) == events[:3]
    assert store.read_job_events("job-1", 3, 100) == events[3:]
    assert store.read_job_events("job-1", 7, 100) == []
    assert store.read_job_events("job-2", 1, 100) == others[1:]
    assert store.read_job_events("job-3", 0, 100) == []


def test_logs_are_trimmed_up_to_and_including(store: Store) -> None:
    events = [job_event(n) for n in range(1, 8)]
    others = [job_event(n, job_id="job-2") for n in range(1, 4)]
    history = [cluster_event(n) for n in range(1, 8)]
    store.commit(Changes([job(), job("job-2")], job_events=events + others, cluster_events=history))
    store.commit(Changes(trimmed_job_events=[("job-1", 5), ("job-2", 1)], trimmed_cluster_events=4))
    assert store.read_job_events("job-1", 0, 100) == events[5:]
    assert store.read_job_events("job-2", 0, 100) == others[1:]
    assert store.read_cluster_events(1, 100) == history[4:]


def test_history_is_read_forward_from_a_position_or_as_its_newest_part(store: Store) -> None:
    history = [cluster_event(n) for n in range(1, 30)]
    store.commit(Changes(cluster_events=history))
    assert store.read_cluster_events(0, 5) == history[-5:]
    assert store.read_cluster_events(10, 5) == history[9:14]
    assert store.read_cluster_events(28, 5) == history[27:]
    assert store.read_cluster_events(30, 5) == []


def test_history_of_one_thing_names_it_in_any_role(store: Store) -> None:
    history = [
        cluster_event(1, executor_id="x"),
        cluster_event(2, job_id="x"),
        cluster_event(3, allocation_id="x"),
        cluster_event(4, executor_id="x", job_id="x", allocation_id="x"),
        cluster_event(5, executor_id="y", job_id="z"),
        cluster_event(6, executor_id="x", allocation_id="y"),
    ]
    store.commit(Changes(cluster_events=history))
    of_x = [*history[:4], history[5]]
    assert store.read_cluster_events(1, 100, "x") == of_x
    assert store.read_cluster_events(0, 100, "x") == of_x
    assert store.read_cluster_events(0, 2, "x") == of_x[-2:]
    assert store.read_cluster_events(2, 2, "x") == of_x[1:3]
    assert store.read_cluster_events(0, 100, "nobody") == []


def test_readers_see_whole_batches_while_a_writer_goes_on(store: Store) -> None:
    """Each batch raises both counters; no snapshot may show one without the other."""
    store.commit(Changes(counters={"left": 0, "right": 0}))
    done, read_once = threading.Event(), threading.Event()

    def read() -> list[tuple[int, int]]:
        seen = []
        while not done.wait(0.001):  # without a pause it may keep the writer from running
            counters = store.load().counters
            seen.append((counters["left"], counters["right"]))
            read_once.set()
        return seen

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            for number in range(1, 100):
                store.commit(Changes(counters={"left": number, "right": number}))
            read_once.wait(PATIENCE_S)
        finally:
            done.set()
        seen = reading.result()
    assert seen
    assert all(left == right for left, right in seen)
    assert all(later >= earlier for earlier, later in pairwise(seen))


def test_a_store_opened_to_read_refuses_to_write(store: Store, opened: OpenStore) -> None:
    store.commit(Changes(jobs=[job()]))
    reader = opened(read_only=True)
    assert reader.load().jobs == [job()]
    with pytest.raises(ConfigurationError, match="read-only"):
        reader.lead("reader")
    with pytest.raises(ConfigurationError, match="read-only"):
        reader.commit(Changes(jobs=[job("job-2")]))


def test_who_never_led_writes_nothing(opened: OpenStore) -> None:
    store = opened()
    with pytest.raises(NotLeader):
        store.commit(Changes(jobs=[job()]))
    with pytest.raises(NotLeader):
        store.renew()
    assert store.load().jobs == []


def test_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    for use in (store.load, store.renew, lambda: store.commit(Changes(jobs=[job()]))):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_house_keeping_loses_nothing(store: Store) -> None:
    for number in range(50):
        store.commit(Changes(jobs=[job(f"job-{number}")]))
        store.maintain()
    assert len(store.load().jobs) == 50


def test_runtime_fields_are_not_stored(store: Store) -> None:
    busy = replace(job(), lease_until_ms=99, acknowledged_sequence=5, arrivals=array("q", [2]))
    store.commit(Changes(jobs=[busy]))
    assert store.load().jobs == [job()]


def test_ids_are_told_apart_by_case_and_accents(store: Store) -> None:
    names = ["a", "A", "ä", "Ä", "a\u0308", " a", "a ", str(sys.maxsize)]
    store.commit(Changes(jobs=[job(name) for name in names]))
    assert sorted(each.job_id for each in store.load().jobs) == sorted(names)


@pytest.mark.parametrize(
    "kind",
    [
        *(Job, Request, Slot, Executor, Gang, Provision, RequestRange, Group, UsageRecord),
        *(JobEvent, ClusterEvent),
    ],
)
def test_no_durable_field_is_left_out_of_the_round_trip(kind: type) -> None:
    """`everything` must set each field to something other than its default.

    Otherwise the round trip would not notice that the field is lost.
    """
    durable = inspect.getsource(kind).partition("# runtime")[0]
    changes = everything()
    stored = chain(
        *(changes.jobs, changes.requests, changes.slots, changes.executors),
        *(changes.gangs, changes.provisions, changes.ranges, changes.groups, changes.usage_records),
        *(changes.job_events, changes.cluster_events),
    )
    rows = [row for row in stored if isinstance(row, kind)]
    with_default = [
        each
        for each in fields(kind)
        if each.default is not MISSING and f"    {each.name}: " in durable
    ]
    assert rows
    for each in with_default:
        assert any(getattr(row, each.name) != each.default for row in rows), each.name


def test_a_range_is_one_row_whatever_becomes_of_its_members(store: Store) -> None:
    store.commit(Changes(jobs=[job()], ranges=[request_range(), request_range("many", 1_000)]))
    ended = {
        (RequestState.RELEASED, "", ""): IntervalSet([(0, 400), (402, 405)]),
        (RequestState.LOST, "EXECUTOR_LOST", 'host "a", lost'): IntervalSet([(400, 401)]),
    }
    store.commit(Changes(ranges=[request_range(ended=ended)]))
    first, second = sorted(store.load().ranges, key=lambda each: each.spec.first_index)
    assert first == request_range(ended=ended)
    assert second == request_range("many", 1_000)


def test_a_part_of_a_range_is_forgotten_by_itself_or_with_its_job(store: Store) -> None:
    parts = [request_range(), request_range("many", 1_000), request_range("more")]
    store.commit(Changes(jobs=[job()], ranges=parts))
    store.commit(Changes(deleted_ranges=[("many", 1_000)]))
    assert sorted(each.spec.range_id for each in store.load().ranges) == ["many", "more"]
    store.commit(Changes(deleted_jobs=["job-1"]))
    assert store.load().ranges == []


def test_a_range_without_its_job_is_refused(store: Store) -> None:
    with pytest.raises(InvariantBroken):
        store.commit(Changes(ranges=[request_range()]))
    assert store.load().ranges == []


def test_a_range_of_unknown_requests_and_the_largest_numbers_come_back(store: Store) -> None:
    spec = RangeSpec(RequestSpec("last", None, restart_on_loss=True), 10**12 - 10_000, 10_000)
    part = request_range("last", spec=spec, arrival_number=2**62)
    store.commit(Changes(jobs=[job()], ranges=[part]))
    assert store.load().ranges == [part]
