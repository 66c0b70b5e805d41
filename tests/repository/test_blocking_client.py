"""The blocking client is the present output of the generator for the asyncio client."""

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import finegrain_client as fg
from finegrain_client.blocking.loop import PrivateLoop
from tests.support.blocking_client import ModuleWriter, written
from tests.support.blocking_types import Types
from tests.support.components import REPOSITORY

SHELF = '''
"""A small asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from finegrain_client.internal import internal

PageFunction = Callable[[int], Awaitable[None] | None]


class Book:
    """A book. Cancelling this is fine."""

    title: str

    def __init__(self, title: str) -> None:
        self.title = title
        self._loop = asyncio.get_running_loop()

    async def read(self, times: int = 1, *, on_page: PageFunction) -> str:
        """Reads it with `await `, as often as wanted."""
        assert asyncio.get_running_loop() is self._loop
        for page in range(times):
            on_page(page)
        return self.title * times


class Shelf:
    """Books."""

    last: Book | None
    lent: asyncio.Event

    def __init__(self) -> None:
        self.last = None
        self.lent = asyncio.Event()
        self._books: dict[str, Book] = {}

    async def __aenter__(self) -> Shelf:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.lent.set()

    def __len__(self) -> int:
        return len(self._books)

    @property
    def books(self) -> dict[str, Book]:
        """All."""
        return dict(self._books)

    async def put(self, title: str) -> Book:
        """Puts a book there."""
        self.last = self._books[title] = Book(title)
        return self.last

    async def lend(self, books: Sequence[Book | str]) -> list[Book]:
        """Gives books away."""
        names = [each if isinstance(each, str) else each.title for each in books]
        return [self._books.pop(each) for each in names]

    async def all(self) -> AsyncIterator[Book]:
        """One by one."""
        for each in self._books.values():
            yield each

    @internal
    def burn(self) -> None:
        """Not for users."""
'''


def load(name: str, text: str, folder: Path) -> ModuleType:
    """Imports a module with this text."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def shelves(tmp_path: Path) -> Iterator[tuple[ModuleType, ModuleType]]:
    """A small asyncio client, and its blocking twin."""
    ours = load("shelf_asyncio", SHELF, tmp_path)
    twins = dict.fromkeys((ours.Book, ours.Shelf), "shelf_blocking")
    text = ModuleWriter(Types("shelf_blocking", twins)).text()
    yield ours, load("shelf_blocking", text, tmp_path)
    del sys.modules["shelf_asyncio"], sys.modules["shelf_blocking"]


@pytest.mark.parametrize(("path", "text"), written().items())
def test_the_blocking_client_is_up_to_date(path: str, text: str) -> None:
    assert (REPOSITORY / path).read_text() == text, "run: python -m tests.support.blocking_client"


def test_whatever_has_to_be_awaited_has_a_blocking_twin() -> None:
    for name in fg.__all__:
        ours = getattr(fg, name)
        if inspect.isclass(ours) and not hasattr(ours, "__anext__"):
            members = [member for each, member in vars(ours).items() if not each.startswith("_")]
            if any(map(inspect.iscoroutinefunction, members)):
                assert name in fg.blocking.__all__


def test_methods_get_twins_without_work_by_hand(shelves: tuple[ModuleType, ModuleType]) -> None:
    ours, twins = shelves
    loop = PrivateLoop()
    pages: list[int] = []
    with twins.Shelf(loop, loop.call(ours.Shelf)) as shelf:
        assert (shelf.last, shelf.books) == (None, {})
        book = shelf.put("a")
        assert isinstance(book, twins.Book)
        assert (book.title, book.read(2, on_page=pages.append), pages) == ("a", "aa", [0, 1])
        assert shelf.last.inner is book.inner
        shelf.put("b")
        assert [each.title for each in shelf.all()] == ["a", "b"]
        assert {name: each.title for name, each in shelf.books.items()} == {"a": "a", "b": "b"}
        assert [each.title for each in shelf.lend([book, "b"])] == ["a", "b"]
        assert (len(shelf), shelf.lent.is_set()) == (0, False)
    assert shelf.lent.wait(timeout_s=0)
    loop.close()


def test_help_is_that_of_a_blocking_client(shelves: tuple[ModuleType, ModuleType]) -> None:
    _, twins = shelves
    assert str(inspect.signature(twins.Book.read)) == (
        "(self, times: 'int' = 1, *, on_page: 'Callable[[int], None]') -> 'str'"
    )
    assert not inspect.iscoroutinefunction(twins.Book.read)
    assert twins.Book.read.__doc__ == "Reads it with ``, as often as wanted."
    assert twins.Book.__doc__ == "A book. Interrupting this is fine."
    assert str(inspect.signature(twins.Shelf.all)) == "(self) -> 'Iterator[Book]'"
    assert not hasattr(twins.Shelf, "burn")


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("    title: str\n", "", r"Book\.title needs a type"),
        ("Sequence[Book | str]", "dict[str, Book]", "cannot be unwrapped"),
        ("-> list[Book]", "-> list[Book] | str | None", "cannot be wrapped"),
        ("times: int = 1", "times: object = print", "default"),
        ("books: Sequence", "at: asyncio.Lock, books: Sequence", "Lock .* no blocking twin"),
    ],
)
def test_what_cannot_be_converted_is_named(
    tmp_path: Path, before: str, after: str, what: str
) -> None:
    assert before in SHELF
    ours = load("shelf_wrong", SHELF.replace(before, after), tmp_path)
    twins = dict.fromkeys((ours.Book, ours.Shelf), "shelf_blocking")
    with pytest.raises(TypeError, match=what):
        ModuleWriter(Types("shelf_blocking", twins)).text()
    del sys.modules["shelf_wrong"]
