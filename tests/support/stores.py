"""Helpers that tests of the store share, besides fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resource_manager.storage.sql_store import SqlStore
from resource_manager.storage.store import Store

OpenStore = Callable[..., Store]
"""Opens a store on the test's database; takes the options of `open_store`."""


def inside(store: Store) -> SqlStore[Any]:
    """Returns the same store as a `SqlStore`. Tests use it to reach the internals of the store."""
    assert isinstance(store, SqlStore)
    return store
