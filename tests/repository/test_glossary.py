"""The classes in the glossary exist in the modules that it names."""

import ast
import re

from tests.support.components import REPOSITORY

ENGINE = REPOSITORY / "resource_manager/engine"


def _defined_in(module: str) -> set[str]:
    tree = ast.parse((ENGINE / module).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_every_class_in_the_glossary_lives_where_it_says() -> None:
    text = (REPOSITORY / "docs/glossary.md").read_text().partition("## In the code")[2]
    rows = re.findall(r"^\| (`.+?) \| .* \| (`.+`) \|$", text, re.MULTILINE)
    assert len(rows) > 30
    missing = []
    for classes, modules in rows:
        defined = set().union(*(_defined_in(name) for name in re.findall(r"`(.+?)`", modules)))
        missing += [name for name in re.findall(r"`(\w+)`", classes) if name not in defined]
    assert missing == []
