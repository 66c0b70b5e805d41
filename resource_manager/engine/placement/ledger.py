"""Records in the capacity indexes the capacity that a placement pass or a tentative search takes.

During a pass, free capacity only decreases. The ledger lowers the leaves of an index in place.
Until `settle`, the maxima, sums and derived columns of the index can be too high. So a search can
check hosts without room, but never misses a host with room.

A tentative ledger also keeps a journal, with which it can roll back all changes since a mark. A
tentative ledger starts with the capacity of empty hosts, or with the free capacity that the current
pass has not taken yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

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
"""The position of a host in an index, and the number of slots that are placed there."""

Mark = tuple[int, int]
"""Identifies a state to which a ledger can roll back: the length of the journal of amounts, and the
length of the journal of cpus.
"""


class Ledger:
    """The capacity that a pass or a tentative search takes. The indexes must be up to date at the
    start. Until the ledger ends, every other change of a host must be reported with `follow`.

    Attributes:
        indexes: the indexes in which the ledger takes capacity.
        changed: the ids of the hosts that changed, in the order of the changes. The ledger keeps
            this list only if some host has GPUs.
    """

    def __init__(self, hosts: Hosts, prefix: str = "", *, topology: bool = False) -> None:
        """Makes the ledger of a pass or of a search.

        Args:
            hosts: all hosts.
            prefix: if the prefix is `KNOWN` or `ONLINE`, the ledger takes the capacity of empty
                hosts, in the columns with this prefix. If the prefix is empty, the ledger takes
                free capacity.
            topology: if true, slots get cpus and NUMA nodes in addition to amounts.
        """
        self.indexes = hosts.indexes.with_prefix(prefix) if prefix else hosts.indexes
        self._prefix = prefix
        self._hosts = hosts
        self._topology = topology
        self._cpus: TentativeCpus | None = None
        self._in_use = hosts.in_use
        self._proportions: dict[CapacityIndex, Proportions] = {}
        self._journal: list[Written] | None = None  # None: the ledger is not tentative
        self.changed: list[str] = []
        # only rankings of hosts with GPUs read `changed`
        self._notes_changes = hosts.indexes.gpu_hosts.sums[0] > 0

    @property
    def cpus(self) -> TentativeCpus:
        """The ledger of the cpus that are taken tentatively. The first access creates this
        ledger.
        """
        if self._cpus is None:
            self._cpus = TentativeCpus(as_if_empty if self._prefix else as_they_are)
        return self._cpus

    @property
    def hosts_in_use(self) -> int:
        """The number of hosts with slots. Hosts that got their first slots in this pass are
        included.
        """
        return self._in_use + len(self.indexes.main.opened)

    def proportions(self, index: CapacityIndex) -> Proportions:
        """Returns the weighted free capacity of the hosts in an index."""
        found = self._proportions.get(index)
        if found is None:
            found = self._proportions[index] = Proportions(index, self._hosts.indexes.main)
        return found

    def took(self, bookings: Bookings, taken: Iterable[Taken]) -> None:
        """Records slots, and lowers the leaves of all indexes except the index of the class. The
        caller must already have lowered the leaves of this index.
        """
        index, journal = bookings.index, self._journal
        if self._notes_changes:
            self.changed += [index.ids[position] for position, _ in taken]
        if journal is None:
            index.took([position for position, _ in taken])
            # If no selector has an index, no other index contains these hosts.
            if not self.indexes.selected:
                return
        # A host can occur several times in `taken`, but the other indexes are lowered once per
        # host.
        counts = Counter[int]()
        for position, count in taken:
            counts[position] += count
        for position, count in counts.items():
            booking = bookings.at(position)
            if journal is not None:
                for name, (leaves, amount, _) in zip(booking.names, booking.columns, strict=True):
                    # The leaves are already lowered, so the old numbers are computed from the new
                    # numbers.
                    journal.append((index, position, name, leaves[position] + amount * count))
            host = self._hosts[index.ids[position]]
            if self._topology:
                self.cpus.take(bookings.scheduling_class, host, count)
            if self.indexes.selected:
                self.indexes.lower(host, booking.amounts, count, besides=index)
                # The cached free capacity of the host in other indexes is too high now.
                self._forget_free(host, besides=index)

    def open(self, index: CapacityIndex, position: int) -> None:
        """Records that an empty host gets its first slots."""
        self.indexes.open(self._hosts[index.ids[position]])

    def take(self, bookings: Bookings, position: int, count: int = 1) -> None:
        """Takes the capacity of slots on one host, in all indexes."""
        host = self._hosts[bookings.index.ids[position]]
        self._note(host)
        self.indexes.open(host)
        self.indexes.lower(host, bookings.at(position).amounts, count)
        self._forget_free(host)
        if self._topology:
            self.cpus.take(bookings.scheduling_class, host, count)

    def close(self, host: Host) -> None:
        """Takes all slots that a host can still get, in all indexes, so that searches skip the
        host. This method must be called only for a tentative ledger.
        """
        for index in self.indexes.all().values():
            # If a host cannot have more slots, no class fits on the host, even if amounts are free.
            if index.knows(host.host_id):
                for name in (SLOTS, DEFAULT_SLOTS):
                    if name in index.columns:
                        index.write(index.position[host.host_id], name, 0)

    def follow(self, hosts: Iterable[Host]) -> None:
        """Reads the free capacity of hosts again after the hosts were booked during the pass. These
        bookings are for slots whose cpus were chosen at the booking, for a gang, or for a slot that
        grows.
        """
        for host in hosts:
            self._note(host)
            self.indexes.follow(host)
            self._forget_free(host)

    def settle(self) -> None:
        """Makes all maxima, sums and derived columns of the indexes correct."""
        for proportions in self._proportions.values():
            proportions.settle()
        self.indexes.settle(self._hosts)

    def mark(self) -> Mark:
        """Returns a mark to which the ledger can roll back. The first call makes the ledger
        tentative.
        """
        if self._journal is None:
            self._journal = []
            # All indexes share one journal, so that all changes can be undone in reverse order.
            for index in self.indexes.all().values():
                index.journal = self._journal
        return len(self._journal), self.cpus.mark()

    def roll_back(self, mark: Mark) -> None:
        """Gives back the capacity that was taken since a mark."""
        amounts, cpus = mark
        journal = self._journal or []
        while len(journal) > amounts:
            index, position, name, before = journal.pop()
            index.undo(position, name, before)
            if index in self._proportions:
                # The next access computes the weighted free capacity again from the leaves.
                self._proportions[index].free.pop(position, None)
        self.cpus.roll_back(cpus)

    def drop(self) -> None:
        """Gives back all taken capacity, and ends the ledger. The ledger must be tentative."""
        self.roll_back((0, 0))
        # `roll_back` added each amount to the sums. But amounts that were lowered in place were
        # never subtracted from the sums, so subtract them now.
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
    """The amounts that one slot of a class takes on each host of an index.

    Attributes:
        scheduling_class: the class.
        index: the index of the hosts.
        everywhere: the booking, if it is the same on all hosts. None if the booking differs between
            hosts.
        empty: for each host, by position: 1 if the host has no slots, and 0 otherwise.
        free: the weighted free capacity of hosts, by position; see `Proportions`.
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
        """Returns the amounts that a slot takes on a host."""
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
        # The booking is the same on all hosts in two cases: the needed columns exist only on hosts
        # with one kind of memory pools, or the bookings for both kinds are equal.
        kinds = [separate for separate, need in needs.items() if need.keys() <= columns.keys()]
        alike = len(kinds) == 1 or pooled == separate
        if wanted.profile is None or not kinds or not alike:
            return None
        return self._proportions.booking(
            shared_booking(wanted.profile, kinds[0], wanted.best_effort)
        )
