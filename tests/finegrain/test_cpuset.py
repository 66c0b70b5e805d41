"""CPU sets read and write what kernels and tools print."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpuset import EMPTY, MAX_ID, CpuSet, union
from finegrain.errors import InvalidArgument

members = st.sets(st.integers(0, 300), max_size=60)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("0-3,8", "0-3,8", id="ranges and numbers"),
        pytest.param("16-19,56-59,36-39", "16-19,36-39,56-59", id="unsorted"),
        pytest.param("0-3,2-5", "0-5", id="overlapping"),
        pytest.param(" 0 - 3", None, id="blanks inside a range"),
        pytest.param("0, 2 ,4\n", "0,2,4", id="blanks around items"),
        pytest.param("", "", id="empty"),
        pytest.param("          (null)\n", "", id="padded (null) of nohz_full"),
        pytest.param("0-10:2", "0,2,4,6,8,10", id="every second, as tools print"),
        pytest.param("0-15:2/8", "0-1,8-9", id="two of eight, as the kernel prints"),
        pytest.param("0-5:3/4", "0-2,4-5", id="a last group that is cut"),
        pytest.param("007", "7", id="leading zeros"),
        pytest.param("3-1", None, id="falling range"),
        pytest.param("0-5:0", None, id="stride of zero"),
        pytest.param("1,,2", None, id="missing item"),
        pytest.param("-1", None, id="negative"),
        pytest.param("0-99999999999999999999", None, id="absurdly high"),
        pytest.param("9" * 5000, None, id="more digits than Python converts"),
        pytest.param("٣", None, id="digits of another script"),
        pytest.param("all", None, id="a word"),
    ],
)
def test_list_notation(text: str, want: str | None) -> None:
    if want is None:
        with pytest.raises(InvalidArgument, match=r"reserved_cpus is .*expected"):
            CpuSet.parse(text, "reserved_cpus")
    else:
        assert str(CpuSet.parse(text)) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("ff", "0-7", id="one group"),
        pytest.param("f,00000000,0000000f", "0-3,64-67", id="short first group, zero group"),
        pytest.param("00000000,00000000", "", id="all zero"),
        pytest.param("0x3", "0-1", id="prefix"),
        pytest.param("ffffffffffffffff", "0-63", id="no commas"),
        pytest.param("", "", id="empty"),
        pytest.param("1,fffffffff", None, id="nine digits in a group"),
        pytest.param("xyz", None, id="not hexadecimal"),
        pytest.param("f" * 20_000, None, id="absurdly wide"),
    ],
)
def test_mask_notation(text: str, want: str | None) -> None:
    if want is None:
        with pytest.raises(InvalidArgument):
            CpuSet.parse_mask(text)
    else:
        assert str(CpuSet.parse_mask(text)) == want


@given(members)
def test_both_notations_round_trip(numbers: set[int]) -> None:
    cpus = CpuSet(numbers)
    assert set(cpus) == numbers
    assert CpuSet.parse(str(cpus)) == cpus
    assert CpuSet.parse_mask(cpus.to_mask()) == cpus
    assert pickle.loads(pickle.dumps(cpus)) == cpus


@given(members, members)
def test_operations_are_those_of_sets(left: set[int], right: set[int]) -> None:
    a, b = CpuSet(left), CpuSet(right)
    assert set(a | b) == left | right
    assert set(a & b) == left & right
    assert set(a - b) == left - right
    assert set(a ^ b) == left ^ right
    assert (a <= b) == (left <= right)
    assert (a < b) == (left < right)
    assert a.isdisjoint(b) == left.isdisjoint(right)
    assert (len(a), bool(a)) == (len(left), bool(left))
    assert union([a, b]) == a | b


@given(members, st.integers(0, 70))
def test_first_takes_the_lowest(numbers: set[int], count: int) -> None:
    assert list(CpuSet(numbers).first(count)) == sorted(numbers)[:count]


def test_membership_and_ends() -> None:
    cpus = CpuSet.of(3, 70)
    assert 3 in cpus
    assert 4 not in cpus
    assert "3" not in cpus
    assert -1 not in cpus
    assert (cpus.min(), cpus.max()) == (3, 70)
    with pytest.raises(ValueError, match="lowest"):
        EMPTY.min()
    with pytest.raises(ValueError, match="highest"):
        EMPTY.max()


def test_sets_are_values() -> None:
    assert {CpuSet.of(1, 2): "x"}[CpuSet.parse("1-2")] == "x"
    assert CpuSet.of(1) != {1}
    assert repr(CpuSet.of(1, 2, 5)) == "CpuSet('1-2,5')"
    with pytest.raises(AttributeError, match="immutable"):
        CpuSet.of(1)._bits = 7


@pytest.mark.parametrize("number", [-1, MAX_ID + 1])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(InvalidArgument):
        CpuSet.of(number)
    with pytest.raises(InvalidArgument):
        CpuSet.from_bits(-1 if number < 0 else 1 << number)
