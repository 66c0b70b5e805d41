"""Measures how much of the engine a reader must keep in mind. These numbers may only fall."""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import Decide, Event, RequestsSubmitted
from resource_manager.engine.step import step
from tests.support.components import REPOSITORY
from tests.support.engine_cluster import EngineCluster
from tests.support.engine_cluster.calls import JOB

ENGINE = REPOSITORY / "resource_manager/engine"

WHOLE_STATE_MAX = 119
"""Functions that take the whole state. Handlers, restoring, and the entry points of explain and
invariants need the whole state. Other functions take the ledgers that they use.
"""

WHOLE_STATE_MAX_SCHEDULING = 36
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


def _profile(what: type[Event]) -> tuple[set[str], set[tuple[str, int]]]:
    """Returns the files and functions of the engine that one event enters. Comprehensions do not
    count as functions, because newer versions of Python run them inside the function around them.
    """
    cluster = EngineCluster()
    cluster.host("host-a")
    cluster.settle()
    files, functions = set[str](), set[tuple[str, int]]()

    def enter(frame: FrameType, kind: str, _argument: object) -> None:
        code = frame.f_code
        if kind == "call" and code.co_filename.startswith(f"{ENGINE}/"):
            files.add(code.co_filename)
            if not code.co_name.startswith("<"):
                functions.add((code.co_filename, code.co_firstlineno))

    spec = RequestSpec("plain", ResourceProfile(1_000, MIB * 64))
    for event in (RequestsSubmitted(cluster.at, JOB, (spec,)), Decide(cluster.at)):
        before = sys.getprofile()
        sys.setprofile(enter if isinstance(event, what) else before)
        step(cluster.state, event)
        sys.setprofile(before)
    assert cluster.where("plain") == "host-a"
    return files, functions


@pytest.mark.parametrize(
    ("event", "files_max", "functions_max"),
    [(RequestsSubmitted, 25, 80), (Decide, 31, 169)],
)
def test_a_plain_request_passes_few_functions(
    event: type[Event], files_max: int, functions_max: int
) -> None:
    files, functions = _profile(event)
    assert len(files) <= files_max
    assert len(functions) <= functions_max
