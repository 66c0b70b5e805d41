"""The capacity that is taken in the indexes of hosts, by a placement pass or by a search that tries
something out.

Within a pass capacity only shrinks. Leaves of an index are lowered in place; its maxima and sums,
and the columns that follow from others, may be too high until `settle`. A search may then look at
hosts that have no room, but it never misses one that has.

A tentative ledger also keeps a journal, so that everything since a mark can be rolled back. It may
start from the hosts as they are, in the middle of a pass, or from what they could give when empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from finegrain.resources import shared_booking
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, EMPTY, SLOTS
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import CapacityIndex, Written
from resource_manager.engine.placement.policies import Booking, Proportions
from resource_manager.engine.placement.tentative_cpus import (
    TentativeCpus,
    as_if_empty,
    as_they_are,
)
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

Taken = tuple[int, int]
"""Position of a host in an index, and how many slots are placed there."""

Mark = tuple[int, int]
"""Where to roll back to: lengths of the journals of amounts and of cpus."""


class Ledger:
    """What a pass or a tentative search takes. The indexes must be fresh, and nothing else may
    change them meanwhile but what is reported with `follow`.

    Attributes:
        indexes: the indexes of hosts.
        changed: hosts that changed, in this order, if any host has GPUs.
    """

    def __init__(self, hosts: Hosts, prefix: str = "", *, topology: bool = False) -> None:
        """Makes the ledger of a pass, or of a search.

        Args:
            hosts: all hosts.
            prefix: of the columns of what hosts could give when empty (`KNOWN` or `ONLINE`); empty:
                of what is free now.
            topology: slots that are taken get cpus as well.
        """
        self.indexes = hosts.indexes.seen_as(prefix) if prefix else hosts.indexes
        self._prefix = prefix
        self._hosts = hosts
        self._topology = topology
        self._in_use = hosts.in_use
        self._proportions: dict[CapacityIndex, Proportions] = {}
        self._journal: list[Written] | None = None  # None: the ledger is not tentative
        self.changed: list[str] = []
        self._notes_changes = hosts.indexes.gpu_hosts.sums[0] > 0  # else nothing reads them

    @cached_property
    def cpus(self) -> TentativeCpus:
        """Cpus that are taken tentatively."""
        return TentativeCpus(as_if_empty if self._prefix else as_they_are)

    @property
    def hosts_in_use(self) -> int:
        """How many hosts have slots, those of this pass included."""
        return self._in_use + len(self.indexes.main.opened)

    def proportions(self, index: CapacityIndex) -> Proportions:
        """Returns what the hosts of an index have left, weighed."""
        found = self._proportions.get(index)
        if found is None:
            found = self._proportions[index] = Proportions(index, self._hosts.indexes.main)
        return found

    def took(self, bookings: Bookings, taken: Iterable[Taken]) -> None:
        """Records slots for which leaves of the class's index were lowered; lowers those of the
        other indexes.
        """
        index, journal = bookings.index, self._journal
        if self._notes_changes:
            self.changed += [index.ids[position] for position, _ in taken]
        if journal is None:
            index.took([position for position, _ in taken])
            # Without indexes of selectors, no other index shows these hosts.
            if not self.indexes.selected:
                return
        # A host may have got several runs; other indexes are lowered once for all of them.
        counts = Counter[int]()
        for position, count in taken:
            counts[position] += count
        for position, count in counts.items():
            booking = bookings.at(position)
            if journal is not None:
                for name, (leaves, amount, _) in zip(booking.names, booking.columns, strict=True):
                    # The leaves are lowered already, so their old numbers are computed.
                    journal.append((index, position, name, leaves[position] + amount * count))
            host = self._hosts[index.ids[position]]
            if self._topology:
                self.cpus.take(bookings.scheduling_class, host, count)
            if self.indexes.selected:
                self.indexes.lower(host, booking.amounts, count, besides=index)
                # What other indexes have cached of the host is too high now.
                self._forget_free(host, besides=index)

    def open(self, index: CapacityIndex, position: int) -> None:
        """Records that an empty host gets slots."""
        self.indexes.open(self._hosts[index.ids[position]])

    def take(self, bookings: Bookings, position: int, count: int = 1) -> None:
        """Takes capacity for slots in all indexes."""
        host = self._hosts[bookings.index.ids[position]]
        self._note(host)
        self.indexes.open(host)
        self.indexes.lower(host, bookings.at(position).amounts, count)
        self._forget_free(host)
        if self._topology:
            self.cpus.take(bookings.scheduling_class, host, count)

    def close(self, host: Host) -> None:
        """Takes all slots that a host has left, in all indexes. Only for a tentative ledger."""
        for index in self.indexes.all().values():
            # Without a slot left no class fits, whatever amounts are free.
            if index.knows(host.host_id):
                for name in (SLOTS, DEFAULT_SLOTS):
                    if name in index.columns:
                        index.write(index.position[host.host_id], name, 0)

    def follow(self, hosts: Iterable[Host]) -> None:
        """Takes in what was booked on these hosts during the pass: slots whose cpus were chosen, a
        gang, or a slot that grows.
        """
        for host in hosts:
            self._note(host)
            self.indexes.follow(host)
            self._forget_free(host)

    def settle(self) -> None:
        """Makes the indexes exact again."""
        for proportions in self._proportions.values():
            proportions.settle()
        self.indexes.settle(self._hosts)

    def mark(self) -> Mark:
        """Returns a mark to roll back to. The ledger is tentative from the first mark on."""
        if self._journal is None:
            self._journal = []
            # One journal for all indexes, so that everything is undone in reverse order.
            for index in self.indexes.all().values():
                index.journal = self._journal
        return len(self._journal), self.cpus.mark()

    def roll_back(self, mark: Mark) -> None:
        """Gives back what was taken since a mark."""
        amounts, cpus = mark
        journal = self._journal or []
        while len(journal) > amounts:
            index, position, name, before = journal.pop()
            index.undo(position, name, before)
            if index in self._proportions:
                # It is computed again from the leaves on the next access.
                self._proportions[index].free.pop(position, None)
        self.cpus.roll_back(cpus)

    def drop(self) -> None:
        """Gives back everything and ends the ledger, which must be tentative."""
        self.roll_back((0, 0))
        # The roll-back adds to the sums what was lowered in place, which was never subtracted from
        # them. This evens that out.
        for proportions in self._proportions.values():
            proportions.settle()
        for index in self.indexes.all().values():
            index.journal = None

    def _note(self, host: Host) -> None:
        if self._notes_changes:
            self.changed.append(host.host_id)

    def _forget_free(self, host: Host, besides: CapacityIndex | None = None) -> None:
        for index, proportions in self._proportions.items():
            if index is not besides and index.knows(host.host_id):
                proportions.free.pop(index.position[host.host_id], None)


class Bookings:
    """What one slot of a class takes on the hosts of an index.

    Attributes:
        scheduling_class: the class.
        index: the index.
        everywhere: on any host; None: that differs between hosts.
        empty: by position: 1 if the host is empty.
        free: what hosts have left, weighed, by position; see `Proportions`.
    """

    def __init__(
        self, scheduling_class: SchedulingClass, proportions: Proportions, hosts: Hosts
    ) -> None:
        self.index = proportions.index
        self.free = proportions.free
        self.everywhere: Booking | None = None
        columns = self.index.columns
        self.empty = columns[EMPTY][0] if EMPTY in columns else [0] * len(self.index)
        self.scheduling_class = scheduling_class
        self._proportions = proportions
        self._hosts = hosts
        self._by_position: dict[int, Booking] = {}
        if scheduling_class.profile is not None:
            self.everywhere = self._everywhere()

    def at(self, position: int) -> Booking:
        """Returns what a slot takes on this host."""
        booking = self.everywhere or self._by_position.get(position)
        if booking is None:
            host = self._hosts[self.index.ids[position]]
            booking = self._proportions.booking(host.booking_for(self.scheduling_class))
            self._by_position[position] = booking
        return booking

    def _everywhere(self) -> Booking | None:
        wanted, columns = self.scheduling_class, self.index.columns
        pooled, separate, *_ = needs_of(wanted)
        needs = {False: pooled, True: separate}
        # One booking serves all hosts if only one kind of memory pools has the columns that the
        # class needs, or if both kinds book the same.
        kinds = [separate for separate, need in needs.items() if need.keys() <= columns.keys()]
        alike = len(kinds) == 1 or pooled == separate
        if wanted.profile is None or not kinds or not alike:
            return None
        return self._proportions.booking(
            shared_booking(wanted.profile, kinds[0], wanted.best_effort)
        )
