"""The classes in the glossary exist in the modules that it names."""

import ast
import re
from pathlib import Path

from tests.support.components import REPOSITORY

ROWS_MIN = {"resource_manager/engine": 30, "task_executor": 15, "client/finegrain_client": 10}
"""Each package with a separate table, and the smallest number of rows of this table."""


def _defined_in(module: Path) -> set[str]:
    tree = ast.parse(module.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_every_class_in_the_glossary_lives_where_it_says() -> None:
    text = (REPOSITORY / "docs/glossary.md").read_text().partition("## In the code")[2]
    tables = re.findall(r"^\| class .*\| module in `(.+?)` \|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert [package for package, _ in tables] == list(ROWS_MIN)
    missing = []
    for package, table in tables:
        rows = re.findall(r"^\| (`.+?) \| .* \| (`.+`) \|$", table, re.MULTILINE)
        assert len(rows) > ROWS_MIN[package]
        for classes, modules in rows:
            paths = [REPOSITORY / package / name for name in re.findall(r"`(.+?)`", modules)]
            defined = set().union(*map(_defined_in, paths))
            missing += [name for name in re.findall(r"`(\w+)`", classes) if name not in defined]
    assert missing == []
