"""docs/cli.md lists the fields that the JSON of the lists really has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from finegrain_cli.web.openapi import description
from finegrain_cli.web.routes import ROUTES

ROOT = Path(__file__).parents[2]
GOLDEN = sorted((ROOT / "tests/data/cli").glob("*.json"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_page_lists_every_field(golden: Path) -> None:
    document = json.loads(golden.read_text(encoding="utf-8"))
    item = document["items"][0] if "items" in document else document
    fields = set(item) - {"api_version", "kind"} if "items" not in document else set(item)

    assert set(_documented(document["kind"])) == fields


def test_a_kind_has_the_same_fields_in_the_command_and_over_http() -> None:
    """A program that reads a document by its kind must not find other fields in it."""
    schemas = description()["components"]["schemas"]
    compared = {}
    for route in ROUTES:
        text = _rows().get(route.kind, "the same as for a list without a row")
        if route.value is not None and not text.startswith("the same as for"):
            compared[route.kind] = set(schemas[route.value.__name__]["properties"])
    assert {kind: set(_documented(kind)) for kind in compared} == compared
    assert {"Cluster", "ExecutorList", "SlotList", "Preview", "Explanation"} <= compared.keys()


def _rows() -> dict[str, str]:
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| .* \| `(\w+)` \| (.*) \|$", page, re.MULTILINE))


def _documented(kind: str) -> list[str]:
    text = _rows()[kind]
    if text.startswith("the same"):
        text = _rows()[f"{kind}List"]
    parts = re.sub(r"(`\w+`): [^;]*(; )?", r"\1 ", text)  # fields of the items of a list within
    return re.findall(r"`(\w+)`", parts)
