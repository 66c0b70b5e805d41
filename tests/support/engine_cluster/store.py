"""A store in memory whose rows tests can read."""

from __future__ import annotations

from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import (
    ClusterEvent,
    HostSetting,
    JobEvent,
    Request,
    RequestRange,
)
from resource_manager.storage.memory_store import MemoryStore

Key = tuple[str, int]

EVERYTHING = 1 << 62


class RowStore(MemoryStore):
    """A store that is the leader from the start, and can be read one table at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.lead("test")

    def apply(self, changes: Changes) -> None:
        """Commits a batch."""
        self.commit(changes)

    def snapshot(self, rm_epoch: int) -> Snapshot:
        """Returns the snapshot that a resource manager of this epoch reads when it starts."""
        found = self.load()
        found.rm_epoch = rm_epoch
        return found

    @property
    def requests(self) -> dict[str, Request]:
        return {each.allocation_id: each for each in self.load().requests}

    @property
    def ranges(self) -> dict[Key, RequestRange]:
        return {(each.spec.range_id, each.spec.first_index): each for each in self.load().ranges}

    @property
    def host_settings(self) -> dict[str, HostSetting]:
        return {each.executor_id: each for each in self.load().host_settings}

    @property
    def job_events(self) -> dict[str, list[JobEvent]]:
        """Returns the events of each job, by job id."""
        return {
            each.job_id: self.read_job_events(each.job_id, 0, EVERYTHING)
            for each in self.load().jobs
        }

    @property
    def cluster_events(self) -> list[ClusterEvent]:
        return self.read_cluster_events(1, EVERYTHING)
