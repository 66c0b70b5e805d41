"""How much of the engine a reader has to hold in the head: these numbers may only go down."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.components import REPOSITORY

ENGINE = REPOSITORY / "resource_manager/engine"

WHOLE_STATE_MAX = 117
"""Functions that take the whole state. Handlers, restoring, and
the entry points of explain and invariants have to; others take the ledgers that they look at."""

WHOLE_STATE_MAX_SCHEDULING = 39
"""The same in the stages of the scheduling cycle."""

ROOT_MODULES_MAX = 10
ROOMS_MAX = 20


def _functions(paths: Iterable[Path]) -> Iterator[ast.FunctionDef]:
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield node


def _takes_all(function: ast.FunctionDef) -> bool:
    arguments = [*function.args.args, *function.args.kwonlyargs]
    return any(
        argument.annotation is not None and ast.unparse(argument.annotation) == "State"
        for argument in arguments
    )


def test_few_functions_take_the_whole_state() -> None:
    scheduling = set((ENGINE / "scheduling").rglob("*.py"))
    assert sum(map(_takes_all, _functions(scheduling))) <= WHOLE_STATE_MAX_SCHEDULING
    others = set(ENGINE.rglob("*.py")) - scheduling
    assert sum(map(_takes_all, _functions(others))) <= WHOLE_STATE_MAX


def test_the_engine_has_few_rooms() -> None:
    def is_room(path: Path) -> bool:
        return path.is_dir() and any(path.glob("*.py"))

    modules = [path for path in ENGINE.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= ROOT_MODULES_MAX
    assert len(modules) + sum(map(is_room, ENGINE.iterdir())) <= ROOMS_MAX
