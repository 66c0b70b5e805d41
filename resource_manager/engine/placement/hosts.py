"""All hosts, and the indexes that are derived from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.placement.indexes import Indexes

if TYPE_CHECKING:
    from resource_manager.engine.model.settings import EngineSettings
    from resource_manager.engine.queue.queue import WaitingQueue


Heard = dict[str, tuple[str, int]]
"""Instance id and number of the last report that was processed, by executor."""


class Hosts(dict[str, Host]):
    """Hosts by the executor's id.

    Attributes:
        settings: of the engine.
        indexes: find hosts with room; up to date after `refresh`.
        version: rises when the capacity of hosts when empty, or which hosts there are, changes.
        in_use: number of hosts that have slots.
        refusing: hosts that refused a slot at some time; the refusal may have ended.
        touched: hosts whose free capacity may have changed since the last `refresh`, or that were
            removed; empty: the indexes are up to date.
    """

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__()
        self.settings = settings
        self.indexes = Indexes(settings)
        self.version = 0
        self.in_use = 0
        self.refusing: dict[str, None] = {}
        self.touched: dict[str, None] = {}

    def of(self, slot: Slot) -> Host:
        """Returns the host of a slot."""
        return self[slot.executor_id]

    def touch(self, host: Host) -> None:
        """Notes that a host's free capacity may have changed."""
        self.touched[host.host_id] = None

    def refresh(self, queue: WaitingQueue) -> None:
        """Updates the indexes from the hosts that were touched, and unblocks requests that may fit
        now.
        """
        # `touched` may contain hosts that were removed. `refresh` is called even if only these are
        # left, because their removal requires the trees of the indexes to be rebuilt.
        touched = [self[name] for name in sorted(self.touched) if name in self]
        self.touched.clear()
        self.indexes.refresh(touched, queue)

    def forget(self, host: Host) -> None:
        """Deletes a host."""
        del self[host.host_id]
        self.indexes.remove(host)
        self.touch(host)  # `refresh` has to rebuild the indexes
        # Cached verdicts about empty hosts may depend on the host. The new version makes them
        # invalid.
        self.version += 1

    def heard(self) -> Heard:
        """Returns the number of the last report of each executor; for `remember`."""
        return {
            name: (host.executor.registration.instance_id, host.executor.report_number)
            for name, host in self.items()
            if host.executor.report_number
        }

    def remember(self, heard: Heard) -> None:
        """Carries report numbers across a reload, so that a registration superseded before the
        reload is still rejected.

        Otherwise a late copy of a registration would count as a new one, and delete slots that were
        made after it.
        """
        for name, (instance_id, report_number) in heard.items():
            host = self.get(name)
            # Another instance of the executor numbers its reports from 1 again.
            if host is not None and host.executor.registration.instance_id == instance_id:
                host.executor.report_number = report_number
