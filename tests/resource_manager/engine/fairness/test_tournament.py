"""Compares the tournament's least entry with a full search."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from resource_manager.engine.fairness.tournament import Entry, Tournament
from tests.support.properties import examples

LEVELS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3))
SLOPES = st.floats(0, 1e3, allow_nan=False).map(lambda x: round(x, 3))

Moves = st.lists(
    st.one_of(
        st.tuples(st.just("seat"), LEVELS, SLOPES),
        st.tuples(st.just("unseat"), st.integers(0, 50), st.none()),
        st.tuples(st.just("move"), LEVELS, SLOPES),
        st.tuples(st.just("wait"), st.floats(0, 1e4, allow_nan=False), st.none()),
    ),
    max_size=80,
)


def naive(entries: list[Entry], tau: float) -> list[Entry]:
    return sorted(entries, key=lambda entry: (entry.at(tau), entry.tie))


def same(found: Entry | None, expected: Entry, tau: float) -> bool:
    """Returns whether it is the same entry, or one equal up to rounding."""
    if found is None:
        return False
    apart = abs(found.at(tau) - expected.at(tau))
    size = abs(found.level) + abs(found.slope * tau) + abs(expected.level)
    return found is expected or apart <= 1e-12 * size


@settings(max_examples=examples(300))
@given(Moves)
def test_whoever_is_least_wins_at_every_moment(
    moves: list[tuple[str, float, float | None]],
) -> None:
    tournament: Tournament[Entry] = Tournament()
    entries: list[Entry] = []
    tau = 0.0
    for number, (what, value, slope) in enumerate(moves):
        if what == "seat":
            entries.append(Entry((number, ""), value, slope or 0.0))
            tournament.seat(entries[-1], tau)
        elif what == "unseat" and entries:
            tournament.unseat(entries.pop(int(value) % len(entries)), tau)
        elif what == "move" and entries:
            entry = entries[number % len(entries)]
            entry.level, entry.slope = value, slope or 0.0
            tournament.moved(entry, tau)
        elif what == "wait":
            tau += value
        assert len(tournament) == len(entries)
        order = naive(entries, tau)
        if order:
            assert same(tournament.least(tau), order[0], tau)
        else:
            assert tournament.least(tau) is None
        if len(order) > 1:
            assert same(tournament.runner_up(tau), order[1], tau)
        else:
            assert tournament.runner_up(tau) is None


def test_of_equal_ones_the_lesser_tie_wins_until_its_line_is_above() -> None:
    tournament: Tournament[Entry] = Tournament()
    steep, flat = Entry((1, "a"), 5.0, 2.0), Entry((2, "b"), 5.0, 1.0)
    tournament.seat(flat, 0.0)
    tournament.seat(steep, 0.0)
    assert tournament.least(0.0) is steep
    assert tournament.runner_up(0.0) is flat
    assert tournament.least(1e-9) is flat


def test_names_decide_between_those_who_have_waited_equally_long() -> None:
    tournament: Tournament[Entry] = Tournament()
    entries = [Entry((7, name)) for name in ("c", "a", "b")]
    for entry in entries:
        tournament.seat(entry, 0.0)
    assert tournament.least(3.0) is entries[1]


def test_lines_that_rise_overtake_each_other_in_turn() -> None:
    tournament: Tournament[Entry] = Tournament()
    entries = [Entry((at, ""), level=float(at * at), slope=40.0 - 2 * at) for at in range(20)]
    for entry in entries:
        tournament.seat(entry, 0.0)
    winners = []
    for at in range(200):
        tau = at / 10 + 0.03
        least = tournament.least(tau)
        assert least is not None
        assert least is naive(entries, tau)[0]
        winners.append(entries.index(least))
    assert winners == sorted(winners)
    assert set(winners) == set(range(20))


def test_seats_are_taken_again() -> None:
    tournament: Tournament[Entry] = Tournament()
    entries = [Entry((at, "")) for at in range(100)]
    for entry in entries:
        tournament.seat(entry, 0.0)
        tournament.unseat(entry, 0.0)
    assert len(tournament) == 0
    assert tournament.entries() == []
    assert {entry.seat for entry in entries} == {-1}
