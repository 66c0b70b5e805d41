"""Programs that read the output of the previous version's commands find the same fields in the
output of this version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.previous.code import EVIDENCE
from tests.previous.documents import broken_promises
from tests.previous.tour import cluster

SAID = sorted((EVIDENCE / "cli").glob("*.json"))
EXAMPLES = Path(__file__).parents[1] / "data/cli"


def document(path: Path) -> Any:
    """A JSON document."""
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "said", [each for each in SAID if (EXAMPLES / each.name).exists()], ids=lambda path: path.stem
)
def test_the_present_example_of_a_command_has_all_that_it_printed(said: Path) -> None:
    """The examples are what the commands print now; see test_lists.py beside the commands."""
    old, new = document(said), document(EXAMPLES / said.name)

    assert new["api_version"] == old["api_version"]
    assert new["kind"] == old["kind"]
    assert broken_promises(old, new) == []


def test_a_key_that_went_and_a_type_that_changed_are_found() -> None:
    old = {"items": [{"name": "a", "size": 1, "total": {"cpu": 1}, "end": None, "slot": {"id": 1}}]}

    def found(**changes: Any) -> list[str]:
        return broken_promises(old, {"items": [{**old["items"][0], **changes}]})

    assert found(more=1, end="now", total={"gpu": 2}, slot=None) == []
    assert found(size=1.5) == [".items[].size was ['int'], is ['float']"]
    assert found(total={"cpu": "1"}) == [".items[].total.* was ['int'], is ['str']"]
    assert found(slot={}) == [".items[].slot.id is missing"]
    assert broken_promises(old, {"items": []}) == []
    assert ".items is missing" in broken_promises(old, {})


@pytest.mark.full
@pytest.mark.slow
def test_every_command_prints_all_that_it_printed() -> None:
    with cluster() as tour:
        said = tour.take()

    assert set(said) == {each.stem for each in SAID}
    broken = {
        each.stem: found
        for each in SAID
        if (found := broken_promises(document(each), said[each.stem]))
    }
    assert broken == {}
