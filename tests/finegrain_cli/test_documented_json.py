"""docs/cli.md lists the fields that the JSON of the lists really has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = sorted((ROOT / "tests/data/cli").glob("*.json"))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_the_page_lists_every_field(golden: Path) -> None:
    document = json.loads(golden.read_text(encoding="utf-8"))
    item = document["items"][0] if "items" in document else document
    fields = set(item) - {"api_version", "kind"} if "items" not in document else set(item)

    assert set(_documented(document["kind"])) == fields


def _documented(kind: str) -> list[str]:
    page = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    text = dict(rows)[kind]
    if text.startswith("the same"):
        text = dict(rows)[f"{kind}List"]
    parts = re.sub(r"(`\w+`): [^;]*(; )?", r"\1 ", text)  # fields of the items of a list within
    return re.findall(r"`(\w+)`", parts)
