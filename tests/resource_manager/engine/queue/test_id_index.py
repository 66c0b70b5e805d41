"""Ids are found by their end or beginning, as long as they exist."""

from __future__ import annotations

from resource_manager.engine.queue.split_maps import BEGINNINGS_MAX, NAMES_MAX, IdIndex


def test_an_id_is_found_by_four_or_more_characters_of_its_end() -> None:
    ids = IdIndex()
    for name in ("0193-a1b2c3d4", "0193-ffffc3d4", "0193-a1b2"):
        ids.add(name)

    assert ids.find("c3d4") == ["0193-a1b2c3d4", "0193-ffffc3d4"]
    assert ids.find("2c3d4") == ["0193-a1b2c3d4"]
    assert ids.find("0193-a1b2c3d4") == ["0193-a1b2c3d4"]
    assert ids.find("3d4") == []
    assert ids.find("b2c3") == []


def test_an_id_is_found_by_its_beginning_if_no_id_ends_so() -> None:
    ids = IdIndex()
    for name in ("0193-a1b2c3d4", "0193-ffff0194", "0194-0193"):
        ids.add(name)

    assert ids.find("0194") == ["0193-ffff0194"]
    assert ids.find("0193") == ["0194-0193"]
    assert ids.find("0193-") == ["0193-a1b2c3d4", "0193-ffff0194"]
    assert ids.find("0193-a1b2c3") == ["0193-a1b2c3d4"]
    assert ids.find("019") == []
    assert ids.find("0195") == []


def test_too_many_ids_that_begin_alike_are_left_to_the_caller() -> None:
    ids = IdIndex()
    for number in range(BEGINNINGS_MAX):
        ids.add(f"01a2-{number}-x")

    assert len(ids.find("01a2-")) == BEGINNINGS_MAX
    ids.add("01a2-more")
    assert ids.find("01a2-") == []
    assert ids.find("01a2-999") == ["01a2-999-x"]


def test_a_deleted_id_is_not_found() -> None:
    ids = IdIndex()
    ids.add("0193-a1b2c3d4")

    ids.discard("0193-a1b2c3d4")
    ids.discard("0193-a1b2c3d4")

    assert ids.find("c3d4") == []


def test_ids_that_all_end_alike_do_not_make_changes_slow() -> None:
    ids = IdIndex()
    for number in range(2 * NAMES_MAX):
        ids.add(f"{number}-mapper")

    ids.discard(f"{2 * NAMES_MAX - 1}-mapper")

    assert len(ids.find("-mapper")) == NAMES_MAX
