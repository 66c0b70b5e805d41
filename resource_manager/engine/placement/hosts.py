"""All hosts, and what is derived of them together: the indexes by which they are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.placement.indexes import Indexes

if TYPE_CHECKING:
    from resource_manager.engine.model.settings import EngineSettings
    from resource_manager.engine.queue.queue import WaitingQueue


Heard = dict[str, tuple[str, int]]
"""Instance id and number of the last report that was taken in, by executor."""


class Hosts(dict[str, Host]):
    """Hosts by the executor's id.

    Attributes:
        settings: of the engine.
        indexes: by which hosts are found; up to date after `refresh`.
        version: rises when what the hosts could give when empty changes.
        in_use: how many have slots.
        refusing: hosts that refused something, perhaps long ago.
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
        """The host that a slot is on."""
        return self[slot.executor_id]

    def touch(self, host: Host) -> None:
        """A host's free capacity may have changed."""
        self.touched[host.host_id] = None

    def refresh(self, queue: WaitingQueue) -> None:
        """Brings the indexes up to date with the hosts that were touched, and wakes those who may
        fit now.
        """
        touched = [self[name] for name in sorted(self.touched) if name in self]
        self.touched.clear()
        self.indexes.refresh(touched, queue)

    def forget(self, host: Host) -> None:
        """Strikes a host."""
        del self[host.host_id]
        self.indexes.remove(host)
        self.touch(host)  # `refresh` has to rebuild the indexes
        self.version += 1

    def heard(self) -> Heard:
        """Up to which report each executor was heard; for `remember`."""
        return {
            name: (host.executor.registration.instance_id, host.executor.report_number)
            for name, host in self.items()
            if host.executor.report_number
        }

    def remember(self, heard: Heard) -> None:
        """Carries report numbers across a reload, so that a registration superseded before the
        reload is still rejected.

        Without this a late copy of one, taken for a new one, would delete slots made since.
        """
        for name, (instance_id, report_number) in heard.items():
            host = self.get(name)
            if host is not None and host.executor.registration.instance_id == instance_id:
                host.executor.report_number = report_number
