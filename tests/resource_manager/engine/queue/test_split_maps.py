"""Tests that requests are found by name and number whatever was added and removed before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import Request, RequestSpec
from resource_manager.engine.queue.split_maps import ByArrival, ByName

PROFILE = ResourceProfile(100, 16 * MIB)


def request(number: int) -> Request:
    return Request(RequestSpec(f"r{number}", PROFILE), "job", number, 0)


@given(st.lists(st.integers(1, 5_000), min_size=1))
def test_they_agree_with_dictionaries(steps: list[int]) -> None:
    by_number, by_name = ByArrival(), ByName()
    expected: dict[int, Request] = {}
    number = 0
    for step in steps:
        number += step  # some steps skip a whole part
        added = expected[number] = request(number)
        by_number.add(added)
        by_name[added.allocation_id] = added
        if step % 3 == 0:
            removed = min(expected)
            assert by_number.pop(removed) is expected.pop(removed)
            by_name.discard(f"r{removed}")
            by_name.discard(f"r{removed}")  # without effect
            assert f"r{removed}" not in by_name
            assert by_name.get(f"r{removed}") is None
            assert by_number.get(removed) is None
        assert len(by_number) == len(by_name) == len(expected)
    assert list(by_number) == list(expected.values())
    for known in expected.values():
        assert by_number[known.arrival_number] is by_number.get(known.arrival_number) is known
        assert by_name[known.allocation_id] is by_name.get(known.allocation_id) is known
        assert known.allocation_id in by_name
