"""Generates the blocking client from the classes of the asyncio client.

Every public method, property and attribute gets a blocking twin, except members marked `internal`.
`blocking_types.py` converts arguments and results. A test fails when the generated files are out of
date; `python -m tests.support.blocking_client` writes them again.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from textwrap import indent
from types import NoneType
from typing import Any, get_type_hints

import finegrain_client
from finegrain_client.batch.job import BatchJob
from finegrain_client.cluster import Cluster, connect
from finegrain_client.graph_run.graph_job import GraphJob
from finegrain_client.internal import is_internal
from finegrain_client.job.job import Job
from finegrain_client.job.ranges import RequestRange
from finegrain_client.job.request import Request
from finegrain_client.slot.reusing import Finished, Reusable
from finegrain_client.slot.slot import Slot
from finegrain_client.slot.task import Task
from tests.support.blocking_types import Types, is_collection, is_lazy
from tests.support.components import REPOSITORY

HANDLES = "finegrain_client.blocking.generated"
BATCH = "finegrain_client.blocking.generated_batch"
GRAPH_RUN = "finegrain_client.blocking.generated_graph_run"
"""Separate modules: their import is slow, and most programs do not need them."""

TWINS: dict[type, str] = {
    **dict.fromkeys((Task, Slot, Request, RequestRange, Job, Cluster), HANDLES),
    BatchJob: BATCH,
    GraphJob: GRAPH_RUN,
}
PROTOCOLS = {Finished: Slot, Reusable: Request}

OPERATORS = {"__len__": "len(self.inner)", "__contains__": "index in self.inner"}
"""Special methods that also get a twin, with the expression that the twin evaluates."""

WORDS = {
    "async with": "with",
    "an async ": "a ",
    "anext": "next",
    "await ": "",
    r"(a|A) function \(plain or async\)": r"\1 function",
    "Cancelling this": "Interrupting this",
    "cancelling this": "interrupting this",
    "is cancelled or fails": "is interrupted or fails",
    ", on one event loop": "",
}
"""Phrases about asyncio in docstrings, and their replacements in the blocking client."""


def written() -> dict[str, str]:
    """Returns the source text of all generated modules, by path in the repository."""
    openers = {HANDLES: [connect]}
    return {
        path_of(module): ModuleWriter(
            Types(module, TWINS, PROTOCOLS), openers.get(module, ())
        ).text()
        for module in dict.fromkeys(TWINS.values())
    }


def path_of(module: str) -> str:
    """Returns the path of a module of the client in the repository."""
    return f"client/{module.replace('.', '/')}.py"


class ModuleWriter:
    """Writes one module: the twins of the classes that belong there.

    Args:
        types: the rules by which types and values are written.
        openers: functions that return a handle for which a loop is started.
    """

    def __init__(self, types: Types, openers: Sequence[Callable[..., Any]] = ()) -> None:
        self._types = types
        self._openers = openers
        # Public names that the asyncio client imports only for its annotations.
        self._known = {each: getattr(finegrain_client, each) for each in finegrain_client.__all__}
        self._known |= {each.__name__: each for each in types.twins}

    def text(self) -> str:
        """Returns the module's source text, formatted.

        Raises:
            TypeError: a public member has no type, or one that cannot be converted.
        """
        module = self._types.module
        classes = [each for each, where in self._types.twins.items() if where == module]
        body = list(chain(map(self._opener, self._openers), map(self._class, classes)))
        imports = list(_imports(self._types.imports))
        needed = self._types.imports
        types = {name: each - needed[name] for name, each in self._types.type_imports.items()}
        if any(types.values()):
            imports.append("from typing import TYPE_CHECKING")
            imports.append(_block("if TYPE_CHECKING:", "", "\n".join(_imports(types))))
        head = [
            '"""Written by `python -m tests.support.blocking_client`; do not edit."""',
            "from __future__ import annotations",
            "\n".join(imports),
        ]
        return formatted("\n\n".join([*head, *body]) + "\n", path_of(module))

    def _class(self, inner: type) -> str:
        base = _base_of(inner)
        bases = f"{self._types.imported('finegrain_client.blocking.handle', base)}"
        head = f"class {inner.__name__}({bases}[{self._types.quoted(inner)}]):"
        members = [*self._constructor(inner), *self._attributes(inner)]
        for name, member in _members(inner):
            if isinstance(member, property):
                members.append(self._property(inner, name, member))
            elif (base, name) != ("LoopOwner", "close"):  # `LoopOwner.close` also ends the loop
                members.append(self._method(member))
        return _block(head, _docstring(inner.__doc__), "\n\n".join(members))

    def _constructor(self, inner: type) -> Iterator[str]:
        """Yields `__init__` if users call it. They do so if its first parameter is a handle."""
        function = vars(inner).get("__init__")
        if function is None:
            return
        first = next(iter(inspect.signature(inner).parameters), "")
        if self._types.twin(self._hints(function).get(first)) is not None:
            call = self._call(self._types.asynchronous(inner), function)
            yield self._function(function, f"super().__init__({first}.loop, {call})")

    def _attributes(self, inner: type) -> Iterator[str]:
        hints = get_type_hints(inner, localns=self._known)
        for name in _attribute_names(inner):
            if name not in hints:
                raise TypeError(f"{inner.__name__}.{name} needs a type in the body of its class")
            value = f"self.inner.{name}"
            if is_collection(hints[name]):
                value = f"self.loop.call({value}.copy)"
            yield self._getter(name, hints[name], value)

    def _property(self, inner: type, name: str, member: property) -> str:
        assert member.fget is not None
        hint = self._hints(member.fget)["return"]
        value = f"self.inner.{name}"
        if is_collection(inner) or is_collection(hint):
            value = f"self.loop.call(lambda: {value})"
        return self._getter(name, hint, value, _docstring(member.__doc__))

    def _getter(self, name: str, hint: Any, value: str, docstring: str = "") -> str:
        head = f"@property\ndef {name}(self) -> {self._types.written(hint)}:"
        return _block(head, docstring, f"return {self._types.wrapped(value, hint)}")

    def _method(self, function: Callable[..., Any]) -> str:
        name = function.__name__
        hint = self._hints(function)["return"]
        call = OPERATORS.get(name) or self._call(f"self.inner.{name}", function)
        if inspect.iscoroutinefunction(function):
            call = f"self.loop.run({call})"
        elif not inspect.isasyncgenfunction(function) and not is_lazy(hint):
            without_arguments = call.endswith("()")
            call = call.removesuffix("()") if without_arguments else f"lambda: {call}"
            call = f"self.loop.call({call})"
        value = self._types.wrapped(call, hint)
        return self._function(function, value if hint is NoneType else f"return {value}")

    def _opener(self, function: Callable[..., Any]) -> str:
        result = self._types.written(self._hints(function)["return"])
        loop = self._types.imported("finegrain_client.blocking.loop", "PrivateLoop")
        call = self._call(self._types.asynchronous(function), function)
        # Start the loop's thread last: if the call fails, the thread must not keep running.
        return self._function(function, f"inner = {call}\nreturn {result}({loop}(), inner)")

    def _function(self, function: Callable[..., Any], body: str) -> str:
        hints = self._hints(function)
        parameters: list[str] = []
        for each in inspect.signature(function).parameters.values():
            if each.kind is each.KEYWORD_ONLY and "*" not in parameters:
                parameters.append("*")
            hint = f": {self._types.written(hints[each.name])}" if each.name in hints else ""
            has_default = each.default is not each.empty
            default = f" = {self._types.default(each.default)}" if has_default else ""
            parameters.append(f"{each.name}{hint}{default}")
        result = self._types.written(hints["return"])
        head = f"def {function.__name__}({', '.join(parameters)}) -> {result}:"
        return _block(head, _docstring(function.__doc__), body)

    def _call(self, called: str, function: Callable[..., Any]) -> str:
        hints = self._hints(function)
        arguments = []
        for each in inspect.signature(function).parameters.values():
            if each.name != "self":
                value = self._types.unwrapped(each.name, hints[each.name])
                name = f"{each.name}=" if each.kind is each.KEYWORD_ONLY else ""
                arguments.append(name + value)
        return f"{called}({', '.join(arguments)})"

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        return get_type_hints(function, localns=self._known)


def formatted(text: str, path: str) -> str:
    """Returns Python source text in the format of this repository.

    Imports that only annotations need move below `TYPE_CHECKING`, because they are slow.
    """
    rules = ["check", "--fix", "--unsafe-fixes", "--select=I,TC"]
    for command in (rules, ["format"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--quiet", f"--stdin-filename={path}", "-"],
            cwd=REPOSITORY,
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    return text


def _imports(imports: Mapping[str, set[str]]) -> Iterator[str]:
    for module, names in imports.items():
        if names:
            yield f"from {module} import {', '.join(sorted(names))}"


def _base_of(inner: type) -> str:
    """Returns the name of a twin's base class.

    It returns a name, and not a class: the generator must not import the blocking client. So the
    generator also works while that client is missing or broken.
    """
    if not hasattr(inner, "__aenter__"):
        return "Handle"
    return "LoopOwner" if hasattr(inner, "close") else "ContextHandle"


def _members(inner: type) -> Iterator[tuple[str, Any]]:
    """Yields public methods and properties, in the order of their definition."""
    seen = set()
    for owner in inner.__mro__[:-1]:
        for name, member in vars(owner).items():
            function = member.fget if isinstance(member, property) else member
            is_public = name in OPERATORS or not name.startswith("_")
            if name in seen or not is_public or not inspect.isfunction(function):
                continue
            seen.add(name)
            if not is_internal(function):
                yield name, member


def _attribute_names(inner: type) -> list[str]:
    """Returns public attributes: those annotated in a class body or set in `__init__`."""
    names: list[str] = []
    for owner in reversed(inner.__mro__[:-1]):
        names += [each for each in inspect.get_annotations(owner) if not each.startswith("_")]
        if (function := vars(owner).get("__init__")) is not None:
            source = inspect.getsource(function)
            names += re.findall(r"^ +self\.([a-z]\w*)(?:: .+)? = ", source, re.MULTILINE)
    return list(dict.fromkeys(names))


def _docstring(text: str | None) -> str:
    text = inspect.cleandoc(text or "")
    for ours, theirs in WORDS.items():
        text = re.sub(ours, theirs, text)
    end = "\n" if "\n" in text else ""
    return f'"""{text}{end}"""' if text else ""


def _block(head: str, docstring: str, body: str) -> str:
    separator = "\n\n" if head.startswith("class") else "\n"
    return f"{head}\n" + indent(separator.join(filter(None, (docstring, body))), "    ")


if __name__ == "__main__":
    for path, text in written().items():
        (REPOSITORY / path).write_text(text)
