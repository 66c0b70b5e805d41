"""Ids are found by their end, as long as they exist."""

from __future__ import annotations

from resource_manager.engine.queue.split_maps import NAMES_MAX, IdEnds


def test_an_id_is_found_by_four_or_more_characters_of_its_end() -> None:
    ends = IdEnds()
    for name in ("0193-a1b2c3d4", "0193-ffffc3d4", "0193-a1b2"):
        ends.add(name)

    assert ends.find("c3d4") == ["0193-a1b2c3d4", "0193-ffffc3d4"]
    assert ends.find("2c3d4") == ["0193-a1b2c3d4"]
    assert ends.find("0193-a1b2c3d4") == ["0193-a1b2c3d4"]
    assert ends.find("3d4") == []
    assert ends.find("b2c3") == []


def test_a_deleted_id_is_not_found() -> None:
    ends = IdEnds()
    ends.add("0193-a1b2c3d4")

    ends.discard("0193-a1b2c3d4")
    ends.discard("0193-a1b2c3d4")

    assert ends.find("c3d4") == []


def test_ids_that_all_end_alike_do_not_make_changes_slow() -> None:
    ends = IdEnds()
    for number in range(2 * NAMES_MAX):
        ends.add(f"{number}-mapper")

    ends.discard(f"{2 * NAMES_MAX - 1}-mapper")

    assert len(ends.find("-mapper")) == NAMES_MAX
