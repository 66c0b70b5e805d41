"""Finds which tests reach which lines, including lines that child processes run.

Each statement of a function under test gets a mark: a byte in a file that every process maps. This
works in forks and under `python -I`, survives kill -9, and costs less than tracing.
"""

from __future__ import annotations

import ast
import json
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_NAME = "_mutation_marks"
_PRELUDE = """
import mmap as _mutation_mmap
with open({path!r}, "r+b") as _mutation_file:
    {name} = _mutation_mmap.mmap(_mutation_file.fileno(), 0)
"""


@dataclass
class Reach:
    """The result of a run of the tests without a mutant.

    `lines` has, for each file and line, the tests that reached the statement which begins there.
    `imported` has the lines outside functions. `seconds` is the duration of each test, including
    set-up and tear-down. `failed` tests are not run against mutants.
    """

    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    imported: dict[str, list[int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def tests_of(self, path: str, line: int) -> list[str]:
        """Returns the tests that reach a statement, the quickest first.

        Code that runs at import (defaults, constants, tables) counts as reached by all tests,
        because its values are used elsewhere. Tests that run anything of the file come first.
        """
        of_file = self.lines.get(path, {})
        first = set(of_file.get(line, []))
        names = first
        if line in self.imported.get(path, []):
            first = {name for names in of_file.values() for name in names}
            names = set(self.seconds)
        return sorted(names, key=lambda name: (name not in first, self.seconds[name], name))

    def reaches(self, path: str, line: int) -> bool:
        """Returns whether any test reaches a statement; cheaper than `tests_of`."""
        if line in self.imported.get(path, []):
            return bool(self.seconds)
        return bool(self.lines.get(path, {}).get(line))

    def encode(self) -> str:
        """Returns text for `decode`; test names are written once."""
        names = {name: at for at, name in enumerate(self.seconds)}
        lines = {
            path: {line: [names[name] for name in found] for line, found in of_file.items()}
            for path, of_file in self.lines.items()
        }
        return json.dumps([lines, self.imported, self.seconds, self.failed])

    @classmethod
    def decode(cls, text: str) -> Reach:
        """Returns what was encoded."""
        encoded, imported, seconds, failed = json.loads(text)
        names = list(seconds)
        lines = {
            path: {int(line): [names[at] for at in found] for line, found in of_file.items()}
            for path, of_file in encoded.items()
        }
        return cls(lines, imported, seconds, failed)


class Marks:
    """The map that marked sources write to; `ids` has the file and line of each byte."""

    def __init__(self, path: Path, ids: list[tuple[str, int]]) -> None:
        self._ids = ids
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), 0)

    def take(self) -> list[tuple[str, int]]:
        """Returns the places marked since the last call."""
        found = bytes(self._bytes)
        self._bytes[:] = bytes(len(found))
        return [each for each, mark in zip(self._ids, found, strict=False) if mark]


def mark_sources(root: Path, paths: Iterable[str], marks: Path) -> list[tuple[str, int]]:
    """Adds marks to the files, and creates the map; returns the file and line of each byte."""
    ids: list[tuple[str, int]] = []
    for path in paths:
        file = root / path
        tree = ast.parse(file.read_text())
        _mark(path, tree, ids)
        start = _first(tree.body)
        tree.body[start:start] = ast.parse(_PRELUDE.format(path=str(marks), name=_NAME)).body
        file.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n")
    marks.write_bytes(bytes(max(1, len(ids))))
    marks.chmod(0o666)  # some tests run as another user
    return ids


def lines_of_import(source: str) -> list[int]:
    """Returns the first lines of statements that are in no function."""
    tree = ast.parse(source)
    inside = {id(node) for function in _functions(tree) for node in _below(function)}
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    outside = [node for node in statements if id(node) not in inside]
    return sorted({node.lineno for node in outside} | {_line(node) for node in outside})


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _below(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    for statement in function.body:
        yield from ast.walk(statement)


def _mark(path: str, tree: ast.Module, ids: list[tuple[str, int]]) -> None:
    inside = {id(node): node for function in _functions(tree) for node in _below(function)}
    blocks = list({id(node): node for node in [*inside.values(), *_functions(tree)]}.values())
    for node in blocks:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                start = _first(block) if name == "body" else 0
                setattr(node, name, block[:start] + _with_marks(path, block[start:], ids))


def _first(block: list[ast.stmt]) -> int:
    """Returns the index after the docstring and the imports from `__future__`."""
    for index, node in enumerate(block):
        match node:
            case ast.Expr(value=ast.Constant(value=str())) if index == 0:
                continue
            case ast.ImportFrom(module="__future__"):
                continue
        return index
    return len(block)


def _with_marks(path: str, block: list[ast.stmt], ids: list[tuple[str, int]]) -> list[ast.stmt]:
    result = []
    for node in block:
        (mark,) = ast.parse(f"{_NAME}[{len(ids)}] = 1").body
        ids.append((path, _line(node)))
        result += [mark, node]
    return result


def _line(node: ast.stmt) -> int:
    """Returns the first line of a statement; for a decorated function, its first decorator."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])
