"""Finds the places of a source file that can be mutated, and makes the mutants.

It uses only mutmut's operators (functions from a syntax node to changed nodes). The rest of mutmut
skips decorated functions and runs the tests differently.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.mutators import mutation_operators

# mutmut offers every node to these operators, which takes most of the time; they change only these.
_ONLY: dict[str, tuple[type[cst.CSTNode], ...]] = {
    "operator_keywords": (cst.Is, cst.IsNot, cst.In, cst.NotIn, cst.Break, cst.Continue),
    "operator_swap_op": (
        cst.AugAssign,
        cst.BinaryOperation,
        cst.BooleanOperation,
        cst.ComparisonTarget,
        cst.UnaryOperation,
    ),
}
_OPERATORS = [(_ONLY.get(each.__name__, kind), each) for kind, each in mutation_operators]

# Loggers: a change to their calls cannot fail a test.
_LOGGERS = {"log", "_log", "logger", "_logger", "logging", "structlog", "warnings"}
# Functions whose arguments only the type checker reads.
_TYPING = {"cast", "TypeVar", "NewType", "assert_type", "reveal_type"}


@dataclass(frozen=True)
class Place:
    """One syntax node that one operator changes, in one or more ways.

    `line` is where the node begins; `statement` is the first line of its statement.
    """

    path: str
    line: int
    statement: int
    operator: str
    changes: int
    _module: cst.Module = field(repr=False, compare=False)
    _node: cst.CSTNode = field(repr=False, compare=False)
    _changed: tuple[cst.CSTNode, ...] = field(repr=False, compare=False)

    def mutant(self, change: int) -> Mutant:
        """Returns the mutant with the change of this number."""
        mutated = self._module.deep_replace(self._node, self._changed[change])
        assert isinstance(mutated, cst.Module)
        return Mutant(self, change, self._module.code, mutated.code)


@dataclass(frozen=True)
class Mutant:
    """A changed version of one file."""

    place: Place
    change: int
    before: str = field(repr=False)
    after: str = field(repr=False)

    @property
    def where(self) -> str:
        return f"{self.place.path}:{self.place.line}"

    def diff(self) -> str:
        """Returns the change as a unified diff without its header."""
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), n=1, lineterm=""
        )
        return "\n".join(list(lines)[2:])


def places(path: str, source: str) -> list[Place]:
    """Returns the places of a file, in order.

    Docstrings, annotations, decorators, logging, `__all__` and code for the type checker have no
    places: a change there cannot fail a test.
    """
    wrapper = MetadataWrapper(cst.parse_module(source))
    finder = _Finder(path, wrapper.module)
    wrapper.visit(finder)
    return finder.places


def draw(candidates: list[Place], sample: int, seed: int) -> list[Mutant]:
    """Draws places, then one change of each, so that a call with many arguments counts once.

    The result depends on candidates and seed only. With fewer candidates than `sample`, each has
    one mutant.
    """
    random = Random(seed)
    drawn = random.sample(candidates, min(sample, len(candidates)))
    mutants = (place.mutant(random.randrange(place.changes)) for place in drawn)
    return [mutant for mutant in mutants if mutant.before != mutant.after]


def source_files(root: Path, path: str) -> list[str]:
    """Returns the Python files of a file or folder, relative to `root`."""
    start = root / path
    found = [start] if start.is_file() else sorted(start.rglob("*.py"))
    return [str(each.relative_to(root)) for each in found]


def _root_name(node: cst.BaseExpression) -> str:
    while isinstance(node, cst.Attribute | cst.Call):
        node = node.value if isinstance(node, cst.Attribute) else node.func
    return node.value if isinstance(node, cst.Name) else ""


def _without_effect(node: cst.CSTNode) -> bool:
    """Returns whether no change inside the node can fail a test."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom():
            return True
        case cst.Call():
            return _root_name(node.func) in _LOGGERS | _TYPING
        case cst.If():
            return m.matches(
                node.test, m.Name("TYPE_CHECKING") | m.Attribute(attr=m.Name("TYPE_CHECKING"))
            )
        case cst.Assign():
            return any(m.matches(each.target, m.Name("__all__")) for each in node.targets)
        case cst.Expr():  # a docstring
            return isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)
    return False


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, path: str, module: cst.Module) -> None:
        super().__init__()
        self._path, self._module = path, module
        self.places: list[Place] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _without_effect(node):
            return False
        for kind, operator in _OPERATORS:
            if isinstance(node, kind) and (changed := tuple(self._changes(node, operator(node)))):
                place = Place(
                    self._path,
                    self._line(node),
                    self._line(self._statement(node)),
                    operator.__name__.removeprefix("operator_"),
                    len(changed),
                    self._module,
                    node,
                    changed,
                )
                self.places.append(place)
        return True

    def _changes(self, node: cst.CSTNode, changed: object) -> Iterator[cst.CSTNode]:
        assert hasattr(changed, "__iter__")
        for each in changed:
            yield each
            if isinstance(node, cst.SimpleString):  # one change of a text is enough
                return

    def _line(self, node: cst.CSTNode) -> int:
        position = self.get_metadata(PositionProvider, node, None)
        if position is None:  # keyword operators have no position
            return self._line(self._parent(node))
        return int(position.start.line)

    def _parent(self, node: cst.CSTNode) -> cst.CSTNode:
        parent = self.get_metadata(ParentNodeProvider, node)
        assert isinstance(parent, cst.CSTNode)
        return parent

    def _statement(self, node: cst.CSTNode) -> cst.CSTNode:
        while not isinstance(node, cst.BaseStatement | cst.SimpleStatementLine | cst.Module):
            node = self._parent(node)
        return node
