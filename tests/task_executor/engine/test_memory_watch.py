"""Finds slots above their share of a GPU's memory, after each reading."""

from __future__ import annotations

from task_executor.engine.memory_watch import MemoryUse, MemoryWatch
from task_executor.engine.slots import SlotKey

SLOT, OTHER = SlotKey("a", 1), SlotKey("b", 1)


def use(used: int, key: SlotKey = SLOT, uuid: str = "GPU-a") -> MemoryUse:
    return MemoryUse(key, uuid, used, 10)


def reads(watch: MemoryWatch, at_s: float, *uses: MemoryUse) -> tuple[int, bool]:
    """Returns how many slots are above their share, and whether another reading must confirm
    this.
    """
    return len(watch.observe(at_s, uses)), watch.must_confirm


def test_a_second_reading_confirms_the_first() -> None:
    watch = MemoryWatch()
    assert reads(watch, 1, use(8)) == (0, False)
    assert reads(watch, 2, use(12)) == (0, True)
    assert reads(watch, 3, use(12)) == (1, False)
    [over] = watch.observe(4, [use(13)])
    assert (over.use.excess_bytes, over.within_at_s) == (3, 1)


def test_a_single_reading_above_the_share_says_nothing() -> None:
    watch = MemoryWatch()
    for at_s, used in enumerate([8, 12, 9, 12, 10, 11]):
        assert watch.observe(at_s, [use(used)]) == ()
    [over] = watch.observe(6, [use(11)])
    assert over.within_at_s == 4


def test_a_slot_stays_above_until_its_memory_is_freed() -> None:
    watch = MemoryWatch()
    found = [len(watch.observe(at_s, [use(12)])) for at_s in range(4)]
    assert found == [0, 1, 1, 1]
    assert watch.observe(4, [use(0)]) == ()
    assert watch.observe(5, [use(12)]) == ()


def test_without_a_reading_within_the_share_the_first_one_counts() -> None:
    watch = MemoryWatch()
    watch.observe(5, [use(12)])
    [over] = watch.observe(6, [use(12)])
    assert over.within_at_s == 5


def test_slots_and_gpus_are_apart() -> None:
    watch = MemoryWatch()
    watch.observe(1, [use(12), use(9, OTHER), use(9, SLOT, "GPU-b")])
    [over] = watch.observe(2, [use(12), use(12, OTHER), use(12, SLOT, "GPU-b")])
    assert (over.use.key, over.use.uuid) == (SLOT, "GPU-a")
    assert watch.must_confirm


def test_a_slot_that_was_not_read_is_not_confirmed() -> None:
    watch = MemoryWatch()
    watch.observe(1, [use(12)])
    assert watch.observe(2, []) == ()
    assert watch.observe(3, [use(12)]) == ()
