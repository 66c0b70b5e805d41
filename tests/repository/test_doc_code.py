"""The Python and TOML blocks of the documentation can be parsed."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
BLOCK = re.compile(r"^```(python|toml)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_code_blocks_can_be_parsed(page: Path) -> None:
    for language, text in BLOCK.findall(page.read_text()):
        if language == "toml":
            tomllib.loads(text)
        else:
            compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
