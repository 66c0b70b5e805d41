"""The privileged process stays small: it imports only the helper's code and the standard
library.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

import pytest

HELPER = Path(__file__).resolve().parents[3] / "task_executor" / "helper"
MODULES = sorted(HELPER.rglob("*.py"))
BOUNDS = "finegrain.values.bounds"  # it has numbers only, no imports
LINES_OF_CODE_MAX = 4500  # before raising it, read docs/decisions/0002-front-helper-supervisor.md


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(HELPER)))
def test_a_module_imports_the_standard_library_and_the_helper_only(module: Path) -> None:
    names = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module or "")
    own = {name for name in names if name.startswith("task_executor.helper")} | {BOUNDS}
    foreign = {name.partition(".")[0] for name in names - own} - sys.stdlib_module_names
    assert foreign == set()
    if module.name not in ("launch.py", "scope.py"):  # they run before the helper
        assert not names & {"threading", "asyncio", "subprocess"}
        # These load libraries, or run code after each fork, so a task's fork would cost more.
        assert not names & {"dataclasses", "hashlib", "random", "secrets", "shutil", "tempfile"}


def test_what_stands_above_the_helper_and_the_bounds_imports_nothing() -> None:
    root = HELPER.parents[1]
    outside = ["task_executor", "finegrain", "finegrain/values"]
    for path in (
        *(root / name / "__init__.py" for name in outside),
        root / "finegrain/values/bounds.py",
    ):
        imports = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert [ast.unparse(node) for node in imports] in (
            [],
            ["from __future__ import annotations"],
        ), path


def lines_of_code(module: Path) -> int:
    """Returns the number of lines with code, without blank lines, comments and docstrings."""
    text = module.read_text()
    code: set[int] = set()
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*silent, tokenize.ENDMARKER):
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            first = body[0]
            if isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                code -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(code)


def test_the_privileged_code_can_be_read_in_an_afternoon() -> None:
    assert sum(map(lines_of_code, MODULES)) <= LINES_OF_CODE_MAX
