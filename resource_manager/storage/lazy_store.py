"""The store of a standby opens the database only when this process can become the leader.

Until then, the store only checks which process leads. While another process has the lock of an
SQLite file, a standby must not open the file: SQLite could then checkpoint the leader's WAL.
"""

from __future__ import annotations

from collections.abc import Callable

from finegrain.errors import StoreError
from resource_manager.engine.model.audit import AuditEntry
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import ClusterEvent, JobEvent
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.store import Store


class LazyStore(Store):
    """The store of a process that possibly has to wait as a standby before it leads.

    Args:
        url: see `open_store`.
        opener: opens the store, and upgrades it if necessary.
    """

    def __init__(self, url: str, opener: Callable[[], Store]) -> None:
        self._location = DatabaseUrl.parse(url)
        self._opener = opener
        self._store: Store | None = None
        self._led = False
        self._closed = False

    def lead(
        self,
        holder: str,
        *,
        above_epoch: int = 0,
        wait_s: float | None = None,
        address: str = "",
        page_address: str = "",
    ) -> int:
        """See `Store.lead`. This store makes one attempt, and ignores `wait_s`."""
        del wait_s
        try:
            # The lock is checked before the file is opened, because opening could change the
            # leader's WAL.
            if self._store is None:
                self._check_free()
                self._store = self._opener()
            epoch = self._store.lead(
                holder,
                above_epoch=above_epoch,
                wait_s=0,
                address=address,
                page_address=page_address,
            )
        except StoreError:
            # The file is closed, because the leader is allowed to replace or upgrade it.
            if not self._led and self._location.is_sqlite:
                self._let_go()
            raise
        self._led = True
        return epoch

    def _check_free(self) -> None:
        if self._location.is_sqlite:
            from resource_manager.storage.sqlite_file import LockFile

            LockFile(self._location.path).check_free()

    def _let_go(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @property
    def _opened(self) -> Store:
        if self._store is None:
            raise StoreError(
                f"the database {self._location} "
                + ("was closed by this process" if self._closed else "is not led by this process")
            )
        return self._store

    def renew(self) -> None:
        """See `Store.renew`."""
        self._opened.renew()

    def holds_lease(self) -> bool:
        """See `Store.holds_lease`."""
        return self._store is not None and self._store.holds_lease()

    def load(self) -> Snapshot:
        """See `Store.load`."""
        return self._opened.load()

    def commit(self, changes: Changes) -> None:
        """See `Store.commit`."""
        self._opened.commit(changes)

    def leave_lost_history(self) -> None:
        """See `Store.leave_lost_history`."""
        self._opened.leave_lost_history()

    def maintain(self) -> None:
        """See `Store.maintain`."""
        self._opened.maintain()

    def read_job_events(self, job_id: str, after_sequence: int, limit: int) -> list[JobEvent]:
        """See `Store.read_job_events`."""
        return self._opened.read_job_events(job_id, after_sequence, limit)

    def read_cluster_events(
        self, from_sequence: int, limit: int, subject_id: str = ""
    ) -> list[ClusterEvent]:
        """See `Store.read_cluster_events`."""
        return self._opened.read_cluster_events(from_sequence, limit, subject_id)

    def meta(self, key: str) -> str | None:
        """See `Store.meta`."""
        return self._opened.meta(key)

    def metas(self, prefix: str) -> dict[str, str]:
        """See `Store.metas`."""
        return self._opened.metas(prefix)

    def read_audit(
        self, before_sequence: int, limit: int, *, actor: str = "", method: str = ""
    ) -> list[AuditEntry]:
        """See `Store.read_audit`."""
        return self._opened.read_audit(before_sequence, limit, actor=actor, method=method)

    def check(self) -> list[str]:
        """See `Store.check`."""
        return self._opened.check()

    def close(self) -> None:
        """See `Store.close`."""
        self._closed = True
        if self._store is not None:
            self._store.close()
