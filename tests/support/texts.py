"""Collects the texts that users read: all help pages, and the templates of all errors.

They are kept in `tests/data/texts`. So a review shows each change of wording. If they are out of
date, a test fails. `python -m tests.support.texts` writes them again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from finegrain_cli.main import app
from tests.support.components import REPOSITORY

FOLDER = REPOSITORY / "tests/data/texts"
COLUMNS = 80
PRODUCT = ("finegrain", "resource_manager", "task_executor", "client", "finegrain_cli")

_BUGS = {"AssertionError", "AttributeError", "IllegalTransition", "InvariantBroken", "KeyError"}
_BUGS |= {"NotImplementedError", "RuntimeError"}
"""Errors whose text users do not see."""


def written() -> dict[Path, str]:
    """Returns the text of each file."""
    return {FOLDER / "help.txt": help_pages(), FOLDER / "errors.txt": error_templates()}


def help_pages() -> str:
    """Returns the help of every command, at 80 columns."""
    root = typer.main.get_command(app)
    return "\n".join(_pages(root, _context(root, "finegrain")))


def _pages(command: Any, context: Any) -> Iterator[str]:
    yield f"$ {context.command_path} --help\n{command.get_help(context)}\n"
    if isinstance(command, TyperGroup):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _pages(inner, _context(inner, name, context))


def _context(command: Any, name: str, parent: Any = None) -> Any:
    return command.context_class(
        command, parent, info_name=name, terminal_width=COLUMNS, max_content_width=COLUMNS
    )


def error_templates() -> str:
    """Returns a line for each place that makes an error: file, class, reason and template."""
    lines = {line for path in _product() for line in _templates(path)}
    return "\n".join(sorted(lines)) + "\n"


def _templates(path: Path) -> Iterator[str]:
    module = _parsed(path)
    raised = {id(node.exc) for node in ast.walk(module) if isinstance(node, ast.Raise)}
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or (name := _name(node.func)) in _BUGS:
            continue
        if id(node) not in raised and name not in _classes():
            continue
        reason = next((each.value for each in node.keywords if each.arg == "reason"), None)
        given = [*node.args, *(each.value for each in node.keywords if each.value is not reason)]
        if texts := [text for each in given if (text := _text(each))]:
            told = f" [{ast.unparse(reason).removeprefix('Reason.')}]" if reason else ""
            yield f"{path.relative_to(REPOSITORY)}: {name}{told}: {' | '.join(texts)}"


@cache
def _classes() -> set[str]:
    """Returns the names of `FinegrainError` and of the classes that are derived from it."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for path in _product()
        for node in ast.walk(_parsed(path))
        if isinstance(node, ast.ClassDef)
    }
    known = {"FinegrainError"}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return known - _BUGS


def _product() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                yield path


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _text(node: ast.expr) -> str | None:
    """Returns a text with the names of its placeholders; None: the node is not a literal."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("\n", "\\n")
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "" for part in parts)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            both = _text(left), _text(right)
            return f"{both[0] or '...'}{both[1] or '...'}" if any(both) else None
        case _:
            return None


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for written_to, text in written().items():
        written_to.write_text(text, encoding="utf-8")
