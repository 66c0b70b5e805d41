"""Loads the job graph that a command names: a job file, or a function in a Python file."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from finegrain.errors import ConfigurationError, FinegrainError, InvalidArgument

if TYPE_CHECKING:
    from finegrain_client.graph import JobGraph

_PYTHON = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def load_graph(text: str) -> JobGraph:
    """Returns the graph that a user named on the command line.

    Args:
        text: FILE.toml, or FILE.py:NAME, where NAME is a graph or a function that returns a graph.

    Raises:
        InvalidArgument: `text` has another form, or the file's content is wrong.
        ConfigurationError: the file cannot be read.
    """
    if found := _PYTHON.fullmatch(text):
        return _from_python(text, Path(found["file"]), found["name"])
    if not text.endswith(".toml"):
        raise InvalidArgument("GRAPH", text, "FILE.toml, or FILE.py:FUNCTION")
    from finegrain_client.graph import parse_job_file

    return parse_job_file(_read(Path(text)), text)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} cannot be read: it is not UTF-8: {error}") from None


def _from_python(text: str, file: Path, name: str) -> JobGraph:
    from finegrain_client.graph import JobGraph

    # Read the file first. If the file cannot be read, a Python file then causes the same error as a
    # job file.
    _read(file)
    try:
        module = _imported(file)
        found = getattr(module, name, None)
        graph = found() if callable(found) else found
    except FinegrainError:
        raise
    except (Exception, SystemExit) as error:  # the user's code can raise any exception
        raise InvalidArgument(
            "GRAPH", text, f"a function that returns a graph; {_described(error, file)}"
        ) from error
    if found is None:
        raise InvalidArgument("GRAPH", text, f"a function in {file}, which has no {name}")
    if not isinstance(graph, JobGraph):
        kind = type(graph).__name__
        raise InvalidArgument("GRAPH", text, f"a function that returns a JobGraph, not {kind}")
    return graph


def _described(error: BaseException, file: Path) -> str:
    """Returns the error as text. If the traceback contains lines of the user's file, the text names
    the last of these lines.
    """
    name = type(error).__name__
    what = f"it raised {name}: {error}" if str(error) else f"it raised {name}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [each.lineno for each in frames if each.filename == str(file.resolve())]
    return f"{what} ({file}, line {lines[-1]})" if lines else what


def _imported(file: Path) -> ModuleType:
    """Runs a Python file as a module. Its imports find modules in the folder of the file, as in a
    script.
    """
    spec = importlib.util.spec_from_file_location(f"finegrain_job_{file.stem}", file.resolve())
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{file} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks up its module by name in `sys.modules`, so the module must have an entry
    # there.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
