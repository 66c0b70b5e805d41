"""A slot changes its size: the larger of the two sizes is booked until the host reports which one
it has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpuset import CpuSet
from finegrain.devices.device import DeviceShare
from finegrain.devices.names import device_requests
from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain.resources import GIB, MIB, ResourceProfile
from task_executor.engine.slot_table import HostShare, Outcome, SlotTable
from task_executor.engine.slots import CarveState, Slot, SlotKey
from tests.support.devices import made_up
from tests.task_executor.engine.test_slot_table import TOTAL, carve, spec, table

KEY = SlotKey("a", 1)


def resize(
    books: SlotTable, number: int = 1, *, cpu: int = 1000, mib: int = 256, **more: Any
) -> Outcome:
    extended = more.pop("extended", ())
    profile = ResourceProfile(cpu, task_heap_memory_bytes=mib * MIB, extended=extended)
    outcome = books.resize(more.pop("key", KEY), number, profile, more.pop("limit", cpu))
    books.check_invariants()
    return outcome


def refusal(outcome: Outcome) -> FinegrainError:
    assert outcome.slot is None
    assert outcome.error is not None
    return outcome.error


def carved(**share: Any) -> SlotTable:
    """Returns a table of one slot with 1000 milli-cores and 256 MiB."""
    books = table(**share)
    carve(books, spec())
    return books


def test_growth_is_booked_at_once_and_shown_when_it_is_enforced() -> None:
    books = carved()
    outcome = resize(books, cpu=1500, mib=512, limit=2000)
    assert outcome.error is None
    assert books.available() == {
        "cpu_milli": 2500,
        "memory_bytes": 512 * MIB,
        "extended.license-x": 2,
    }
    (shown,) = books.visible()
    assert (shown.spec.profile.cpu_milli, shown.spec.resize_number) == (1000, 0)
    slot = books.resized(KEY)
    assert (slot.spec.profile.cpu_milli, slot.spec.cpu_limit_milli) == (1500, 2000)
    assert (slot.spec.resize_number, slot.becoming) == (1, None)
    assert books.available()["cpu_milli"] == 2500
    books.check_invariants()


def test_what_shrinks_is_available_only_when_it_is_enforced() -> None:
    books = carved()
    resize(books, cpu=300, mib=64)
    assert books.available()["cpu_milli"] == 3000
    assert books.available_beside(books.visible())["cpu_milli"] == 3000
    books.resized(KEY)
    assert books.available()["cpu_milli"] == 3700
    assert books.available()["memory_bytes"] == (1024 - 64) * MIB


def test_of_each_dimension_the_larger_is_booked() -> None:
    books = carved()
    resize(books, cpu=200, mib=512, extended=(("license-x", 1),))
    assert books.allocated() == {
        "cpu_milli": 1000,
        "memory_bytes": 512 * MIB,
        "extended.license-x": 1,
    }
    books.resized(KEY)
    assert books.allocated() == {
        "cpu_milli": 200,
        "memory_bytes": 512 * MIB,
        "extended.license-x": 1,
    }


def test_one_that_failed_leaves_the_slot_as_it_was() -> None:
    books = carved()
    before = books.get(KEY)
    resize(books, cpu=2000, mib=64)
    books.resize_failed(KEY)
    assert books.get(KEY) == before
    assert books.available() == {
        "cpu_milli": 3000,
        "memory_bytes": 768 * MIB,
        "extended.license-x": 2,
    }


def test_growth_that_does_not_fit_is_refused_with_what_is_missing() -> None:
    books = carved()
    carve(books, spec("b", cpu=2500))
    error = refusal(resize(books, cpu=1600, mib=1))
    assert error.reason is Reason.INSUFFICIENT_RESOURCES
    assert error.details == {
        "asked.cpu_milli": "600",
        "available.cpu_milli": "500",
        "total.cpu_milli": "4000",
    }
    slot = books.get(KEY)
    assert slot is not None
    assert slot.becoming is None


def test_a_slot_shrinks_also_where_more_is_promised_than_there_is() -> None:
    """This is the case after a restart with a smaller share of the host."""
    books = table()
    books.adopt(Slot(spec(cpu=6000), CarveState.ALLOCATED))
    assert resize(books, cpu=5000).error is None
    assert refusal(resize(books, 2, cpu=6500)).reason is Reason.SLOT_NOT_READY
    books.resized(KEY)
    assert refusal(resize(books, 2, cpu=5001)).reason is Reason.INSUFFICIENT_RESOURCES


def test_the_same_number_with_the_same_content_is_the_same_before_and_after() -> None:
    books = carved()
    first = resize(books, 3, cpu=500)
    assert resize(books, 3, cpu=500).slot == first.slot
    done = books.resized(KEY)
    again = resize(books, 3, cpu=500)
    assert again.slot == done
    assert done.becoming is None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_number_that_is_over_is_refused_with_the_last_one(number: int) -> None:
    books = carved()
    resize(books, 3, cpu=500)
    for _ in ("under way", "done"):
        error = refusal(resize(books, number, cpu=700))
        assert error.reason is Reason.STALE_RESIZE
        assert error.details["resize_number"] == "3"
        if books._slots[KEY].becoming:
            books.resized(KEY)
    assert resize(books, 4, cpu=700).error is None


def test_a_number_that_failed_may_come_again() -> None:
    books = carved()
    resize(books, 1, mib=64)
    books.resize_failed(KEY)
    assert resize(books, 1, mib=64).error is None


def test_one_at_a_time() -> None:
    books = carved()
    resize(books, 1, cpu=500)
    assert refusal(resize(books, 2, cpu=700)).reason is Reason.SLOT_NOT_READY


def test_only_a_slot_that_is_there_and_stays_has_a_size_to_change() -> None:
    books = carved()
    for key in (SlotKey("a", 2), SlotKey("b", 1)):
        assert refusal(resize(books, key=key)).reason is Reason.ALLOCATION_UNKNOWN
    books.allocate([spec("c")])
    assert refusal(resize(books, key=SlotKey("c", 1))).reason is Reason.ALLOCATION_UNKNOWN
    books.begin_free(KEY)
    assert refusal(resize(books, cpu=10)).reason is Reason.SLOT_NOT_READY


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        pytest.param({"cpu": 0}, "profile.cpu_milli", id="no cpu"),
        pytest.param({"mib": 0}, "memory_bytes", id="no memory"),
        pytest.param({"limit": 999}, "cpu_limit_milli", id="a cap below the booking"),
    ],
)
def test_a_size_that_makes_no_sense_is_refused(bad: dict[str, Any], field: str) -> None:
    error = refusal(resize(carved(), **bad))
    assert isinstance(error, InvalidArgument)
    assert error.field == field


@pytest.mark.parametrize("works", [True, False])
def test_a_slot_that_is_freed_meanwhile_gives_back_all_that_is_booked(works: bool) -> None:
    books = carved()
    resize(books, cpu=3000, mib=64)
    books.begin_free(KEY)
    if works:
        books.resized(KEY)
    books.check_invariants()
    books.freed(KEY)
    assert books.available() == TOTAL
    books.check_invariants()


def test_a_change_that_is_under_way_is_booked_when_it_is_adopted() -> None:
    books = table()
    books.adopt(Slot(spec(), CarveState.ALLOCATED, becoming=spec(cpu=3500, mib=1, resize_number=1)))
    assert books.available() == {
        "cpu_milli": 500,
        "memory_bytes": 768 * MIB,
        "extended.license-x": 2,
    }
    books.check_invariants()


def test_a_share_of_a_gpu_may_be_named_in_bytes_instead_of_percent() -> None:
    """The GPU is full, but the slot only needs less of it: 3 GiB and not half of its 8 GiB."""
    host = made_up(1, memory_bytes=8 * GIB)
    total = TOTAL | {f"device.{name}": amount for name, amount in host.devices[0].capacity}
    books = SlotTable(HostShare(total, CpuSet.parse("0-3"), devices=host))

    def half(core: int, memory_bytes: int) -> CpuAssignment:
        amounts = {"gpu-core": core, "gpu-memory": memory_bytes}
        amounts["gpu-memory-ratio"] = memory_bytes * 100 // (8 * GIB)
        return CpuAssignment(devices=(DeviceShare("gpu", "GPU-0", 0, tuple(amounts.items())),))

    percent = device_requests({"gpu-core": 50, "gpu-memory-ratio": 50})
    for name in ("a", "b"):
        one = spec(name, assignment=half(50, 4 * GIB))
        carve(books, replace(one, profile=replace(one.profile, devices=percent)))
    in_bytes = device_requests({"gpu-core": 40, "gpu-memory": 3 * GIB})
    profile = ResourceProfile(1000, task_heap_memory_bytes=256 * MIB, devices=in_bytes)
    assert books.resize(KEY, 1, profile, 1000, half(40, 3 * GIB)).error is None
    books.resized(KEY)
    assert books.available()["device.gpu-memory"] == GIB
    more = replace(profile, devices=device_requests({"gpu-core": 40, "gpu-memory": 5 * GIB}))
    refused = refusal(books.resize(KEY, 2, more, 1000, half(40, 5 * GIB)))
    assert refused.reason is Reason.DEVICES_UNAVAILABLE
