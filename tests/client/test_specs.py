"""Tests of slot specs: defaults, unknown slots, bad amounts, batches."""

import pytest

import finegrain_client as fg
from finegrain_client.job.submission import batches, pieces


def test_nothing_given_is_an_unknown_slot() -> None:
    (message,) = fg.SlotSpec(labels={"zone": "a"}).messages()
    assert not message.HasField("profile")
    assert dict(message.required_labels) == {"zone": "a"}


@pytest.mark.parametrize(
    ("spec", "cpu_milli", "heap", "managed"),
    [
        (fg.SlotSpec(cpu_milli=500), 500, 256 * fg.MIB, 0),
        (fg.SlotSpec(memory_bytes=fg.GIB), 1000, fg.GIB, 0),
        (fg.SlotSpec(managed_memory_bytes=fg.GIB), 1000, 0, fg.GIB),
        (fg.SlotSpec(extended={"license": 1}), 1000, 256 * fg.MIB, 0),
    ],
    ids=["only cpu", "only memory", "only managed memory", "only a license"],
)
def test_what_is_missing_gets_its_default(
    spec: fg.SlotSpec, cpu_milli: int, heap: int, managed: int
) -> None:
    (message,) = spec.messages()
    assert message.profile.cpu_milli == cpu_milli
    assert message.profile.task_heap_memory_bytes == heap
    assert message.profile.managed_memory_bytes == managed


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"cpu_milli": 0.5}, "cpu_milli"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"memory_bytes": 2**60}, "memory_bytes"),
        ({"extended": {"gpu": 1.5}}, "extended"),
        ({"count": 0}, "count"),
        ({"count": 2, "allocation_id": "a"}, "count"),
        ({"allocation_id": "no spaces"}, "allocation_id"),
    ],
    ids=str,
)
def test_bad_wishes_are_named(wish: dict[str, object], field: str) -> None:
    with pytest.raises(fg.InvalidArgument) as caught:
        fg.SlotSpec(**wish)  # type: ignore[arg-type]
    assert caught.value.field.startswith(field)


def test_every_slot_of_a_range_has_its_own_id() -> None:
    messages = list(fg.SlotSpec(count=100).messages())
    assert len({each.allocation_id for each in messages}) == 100


def test_batches_keep_the_order_and_both_limits() -> None:
    many = list(pieces(fg.SlotSpec(labels={"k": "v" * 50}, count=10)))
    messages = [message for piece in many for message in piece.requests]
    by_items = list(batches(many, items_max=4))
    assert [len(each.requests) for each in by_items] == [4, 4, 2]
    by_bytes = list(batches(many, bytes_max=300))
    assert [each for batch in by_bytes for each in batch.requests] == messages
    assert all(sum(each.ByteSize() for each in batch.requests) <= 300 for batch in by_bytes)
    assert [len(each.requests) for each in batches(many, bytes_max=1)] == [1] * 10
