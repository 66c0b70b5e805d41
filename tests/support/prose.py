"""Collects the sentences that people read in this repository, with the place of each.

Prose is: docstrings and comments of all Python files, sentences in the code of the product,
comments of the protocol, Markdown files, help pages and error templates, stories of the engine, the
files in `deploy`, and the help of `./dev`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.repository_files import repository_files
from tests.support.texts import PRODUCT

_PLAIN = ("deploy/", "tests/data/texts/", "tests/scenarios/", "dev", ".ci/run")
"""Files and folders that are prose as a whole, beside all Markdown files."""

_GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
_CODE = re.compile(r"`[^`\n]+`")


@dataclass(frozen=True, slots=True)
class Prose:
    """One piece of text, which begins at `line` of a file. Code in backticks is blanked out."""

    path: str
    line: int
    text: str


def files() -> list[str]:
    """Returns the files that can have prose, by their paths in the repository."""
    return [name for name in repository_files() if _has_prose(name)]


def prose(path: str, source: str) -> Iterator[Prose]:
    """Yields the prose of one file.

    Args:
        path: path of the file in the repository. The name shows the kind of the file.
        source: the file's content.
    """
    if path.endswith(".py"):
        pieces = [*_strings(source, path.startswith(PRODUCT)), *_comments(source)]
    elif path.endswith(".proto"):
        pieces = [(1, "\n".join(line.partition("//")[2] for line in source.splitlines()))]
    else:
        pieces = [(1, source)]
    for line, text in pieces:
        yield Prose(path, line, _CODE.sub(lambda code: " " * len(code[0]), text))


def _has_prose(path: str) -> bool:
    if path.endswith((".py", ".proto", ".md")):
        return not _GENERATED.search(path)
    return path.startswith(_PLAIN)


def _strings(source: str, sentences: bool) -> Iterator[tuple[int, str]]:
    """Yields docstrings, also those of attributes and constants, and all sentences if asked for."""
    lines, docstrings = source.splitlines(), set[int]()
    for node in ast.walk(ast.parse(source)):  # a docstring's expression comes before its constant
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                docstrings.add(id(node.value))
                yield node.lineno, "\n".join(lines[node.lineno - 1 : node.end_lineno])
            case ast.Constant(value=str(text)) if sentences and id(node) not in docstrings:
                if " " in text and "\n" not in text:
                    yield node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields comments; joins comments on consecutive lines, because they share sentences."""
    first, block = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != first + len(block):
            yield first, "\n".join(block)
            block = []
        first = first if block else token.start[0]
        block.append(token.string.lstrip("#"))
    if block:
        yield first, "\n".join(block)
