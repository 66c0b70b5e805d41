"""What tests of the store share besides fixtures."""

from __future__ import annotations

from collections.abc import Callable

from resource_manager.storage.sql_store import SqlStore
from resource_manager.storage.store import Store

OpenStore = Callable[..., Store]
"""Opens a store on the test's database; options as of `open_store`."""


def inside(store: Store) -> SqlStore:
    """The same store, for tests that look below the promise."""
    assert isinstance(store, SqlStore)
    return store
