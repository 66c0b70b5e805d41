"""Tests which changes the tool makes to a file, and which not."""

from __future__ import annotations

from tests.mutation.mutants import Mutant, draw, places

SOURCE = '''"""Prices of a shop."""

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    FLAG = 1

__all__ = ["price"]
LIMIT: int = 3


@property
def price(count: "int") -> int:
    """Returns the price."""
    log.info("price of %s", count)
    return cast("int", count * 2)
'''


def all_mutants(source: str) -> list[Mutant]:
    found = places("shop.py", source)
    return [place.mutant(change) for place in found for change in range(place.changes)]


def changed_lines(source: str) -> list[str]:
    """Returns the new text of every line that a mutant changes."""
    diffs = [mutant.diff().splitlines() for mutant in all_mutants(source)]
    return [line[1:].strip() for diff in diffs for line in diff if line.startswith("+")]


def test_a_comparison_a_number_and_a_condition_are_changed() -> None:
    source = "def f(a, b):\n    return a > 1 and not b\n"
    assert sorted(changed_lines(source)) == [
        "return a > 1 and b",
        "return a > 1 or not b",
        "return a > 2 and not b",
        "return a >= 1 and not b",
    ]


def test_nothing_is_changed_that_no_test_could_notice() -> None:
    assert changed_lines(SOURCE) == ["LIMIT: int = None", "LIMIT: int = 4"]


def test_functions_with_decorators_are_changed() -> None:
    source = "@property\ndef f(self):\n    return self.a - 1\n"
    assert set(changed_lines(source)) == {"return self.a + 1", "return self.a - 2"}


def test_a_text_is_changed_in_one_way() -> None:
    assert changed_lines("def f():\n    return 'Some Text'\n") == ["return 'XXSome TextXX'"]


def test_a_place_knows_its_line_and_that_of_its_statement() -> None:
    (place,) = places("shop.py", "def f(a):\n    return g(\n        a,\n        7,\n    ).h[7]\n")[
        -1:
    ]
    assert (place.line, place.statement) == (5, 2)


def test_a_call_with_many_arguments_is_drawn_as_often_as_a_comparison() -> None:
    found = places("shop.py", "def f(a):\n    g(a, a, a, a)\n    return a < a\n")
    assert [(place.operator, place.changes) for place in found] == [
        ("arg_removal", 8),
        ("swap_op", 1),
    ]
    assert len(draw(found, 2, seed=1)) == 2


def test_a_seed_gives_the_same_sample_again() -> None:
    found = places("shop.py", "def f(a):\n" + "".join(f"    a += {n}\n" for n in range(50)))
    samples = [[mutant.diff() for mutant in draw(found, 10, seed)] for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]
    assert len(set(samples[0])) == 10
