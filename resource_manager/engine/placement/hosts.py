"""Keeps all hosts, and the indexes in which placement finds hosts with room. One capacity index
(`index.py`) contains all hosts. Some label selectors have their own index.

Each index is a tree of maxima (`index.py`). Its numbers are copies of numbers in the hosts'
ledgers. At most `label_indexes_max` selectors have their own index, because job masters can use any
number of selectors, and building an index reads every host. For any other selector, the search uses
the index of all hosts and checks the labels itself.

Example: hosts `a` and `b` have the label zone=x, host `c` has zone=y. The hosts `a`, `b` and `c`
have 4, 8 and 16 cpus free.

- `main` contains all three hosts. A class that requires zone=x gets an index with only `a` and `b`.
- A slot of 2 cpus on `b` lowers the free cpu of `b` to 6 in both indexes.
- If a slot on `c` ends, only a number in `main` rises. Classes that require zone=x stay blocked,
  because no host in their index has got more room. Classes that use `main` are unblocked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy

from finegrain.resources import Amounts
from resource_manager.engine.hosts.cpu_allocator import CpuKind
from resource_manager.engine.hosts.host import UNLIMITED, Host
from resource_manager.engine.hosts.labeled_slots import LabeledSlots
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, EMPTY, IN_USE, SLOTS, Labels
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.columns import columns_of, score_columns_of
from resource_manager.engine.placement.gpu_hosts import GpuHosts
from resource_manager.engine.placement.index import CapacityIndex
from resource_manager.engine.queue.queue import WaitingQueue

BUILT_AT_ONCE = 4
"""At most this many indexes for selectors are built in one pass."""

_VERSION_STEP = 1 << 40
"""The first version of each new index is higher by this number than the first version of the
previous new index. A class stores the version of the index of its last search. So if this index was
deleted and built again, the stored version differs from all versions of the new index.
"""


UNREPORTED: CpuKind = ("unreported",)
"""The kind of hosts that do not report their cpus."""


class Indexes:
    """All indexes, by label selector. The index of the empty selector contains every host and
    always exists.

    Attributes:
        main: the index of all hosts.
        selected: the other indexes, by selector. Each index contains the hosts that carry all
            labels of its selector.
        aligning: hosts that align every slot to NUMA nodes. On such a host, amounts alone never
            decide whether a slot fits.
        gpu_hosts: the hosts that have GPUs.
        kinds: the hosts by kind. Hosts of one kind have equal cpus, so the cpus of two empty hosts
            of one kind suit the same requests. All hosts that do not report their cpus form one
            kind (`UNREPORTED`).
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self.main = CapacityIndex()
        self._made = 0
        self._may_build = BUILT_AT_ONCE
        self.selected: dict[Labels, CapacityIndex] = {}
        self._labels: dict[str, dict[str, str]] = {}  # labels of each host at the last refresh
        self._carriers: dict[tuple[str, str], dict[str, None]] = {}  # hosts by label and value
        self.aligning: dict[str, None] = {}
        self.gpu_hosts = GpuHosts()
        self.kinds: dict[CpuKind, dict[str, None]] = {}
        self._kind_of: dict[str, CpuKind] = {}

    def of(self, labels: Labels) -> CapacityIndex:
        """Returns the index of the hosts with these labels. If this index does not exist, returns
        the index of all hosts.
        """
        return self.selected.get(labels, self.main)

    def get_or_build(self, labels: Labels, hosts: Iterable[Host]) -> CapacityIndex:
        """Builds an index for the labels if the limits allow it. Then returns the index that `of`
        returns.

        Args:
            labels: the labels of the selector.
            hosts: all hosts. Building an index takes time in proportion to the number of hosts.
        """
        full = len(self.selected) >= self._settings.label_indexes_max
        if not labels or labels in self.selected or full or not self._may_build:
            return self.of(labels)
        self._may_build -= 1
        self._made += 1
        index = self.selected[labels] = CapacityIndex(self._made * _VERSION_STEP)
        for host in hosts:
            if host.carries(labels):
                index.put(host.host_id, columns_of(host, self._settings.strategy))
        index.freshen()
        for position in self.main.opened:  # `settle` marks these hosts as in use
            if index.knows(name := self.main.ids[position]):
                index.write(index.position[name], IN_USE, 0)
                index.opened.append(index.position[name])
        return index

    def with_prefix(self, prefix: str) -> Indexes:
        """Returns a copy that contains only the index of all hosts. The copy has only the columns
        with the prefix; see `CapacityIndex.with_prefix`.
        """
        seen = copy(self)
        seen.main, seen.selected, seen._may_build = self.main.with_prefix(prefix), {}, 0
        return seen

    def carriers(self, labels: Labels) -> Iterator[str]:
        """Yields the ids of the hosts that carried all these labels at the last refresh. `labels`
        must not be empty.
        """
        each = [self._carriers.get(label, {}) for label in labels]
        rarest = min(each, key=len)
        return (name for name in rarest if all(name in others for others in each))

    def carrier_count(self, labels: Labels) -> int:
        """Returns an upper limit for the number of hosts that carry all these labels. `labels` must
        not be empty.
        """
        return min(len(self._carriers.get(label, {})) for label in labels)

    def refresh(self, dirty: Iterable[Host], queue: WaitingQueue) -> None:
        """Updates the indexes from the ledgers of changed hosts, and unblocks requests that
        possibly fit now.
        """
        grew = False
        # Update the numbers of each host, and find the hosts with more room than before.
        for host in dirty:
            vector = columns_of(host, self._settings.strategy)
            relabelled = self._label(host)
            self._sort_by_cpus(host)
            rose = self.main.put(host.host_id, vector)
            # New labels change no column. But classes that found no room must check a host with new
            # labels again.
            if relabelled and not rose:
                self.main.log_growth(host.host_id)
            if relabelled or rose:
                grew = True
                queue.non_batchables.grew(host.host_id, host.labels)
            # If a class has its own index, the class is unblocked only when a host in this index
            # gets more room.
            for labels, index in self.selected.items():
                if host.carries(labels):
                    if index.put(host.host_id, vector):
                        queue.unblock(labels)
                elif index.knows(host.host_id):
                    index.remove(host.host_id)
        # Rebuild the trees once for all hosts, before classes search.
        self.main.freshen()
        for index in self.selected.values():
            index.freshen()
        if grew:
            self._unblock_in_main(queue)
        # Unused indexes are deleted only at the limit, because it is costly to build them again.
        if len(self.selected) >= self._settings.label_indexes_max:
            for labels in [labels for labels in self.selected if not queue.is_required(labels)]:
                del self.selected[labels]
        self._may_build = BUILT_AT_ONCE

    def lower(
        self, host: Host, booked: Amounts, count: int, besides: CapacityIndex | None = None
    ) -> None:
        """Subtracts the amounts of booked slots from the free amounts of a host, in every index
        except `besides`.

        Args:
            host: the host.
            booked: the amounts that one slot books.
            count: the number of slots.
            besides: the index in which the caller has already lowered the numbers; None if there is
                no such index.
        """
        for index in (self.main, *self.selected.values()):
            if index is not besides and index.knows(host.host_id):
                at = index.position[host.host_id]
                for name, amount in booked.items():
                    index.write(at, name, index.columns[name][0][at] - amount * count)
                if host.executor.registration.slots_max:
                    index.write(at, SLOTS, index.columns[SLOTS][0][at] - count)
                self._derive(index, host, at)

    def open(self, host: Host) -> None:
        """Records in every index that an empty host gets its first slots in the current pass."""
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                at = index.position[host.host_id]
                # List only hosts that were empty until now. A host that is in use, or was opened
                # earlier in this pass, has 0 in this column.
                if index.value(host.host_id, EMPTY):
                    index.open(at)

    def follow(self, host: Host) -> None:
        """Updates every index from the ledger of a host that was booked outside the pass."""
        if host.slots:
            self.open(host)
        vector = columns_of(host, self._settings.strategy)
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                at = index.position[host.host_id]
                for name, column in index.columns.items():
                    # `settle` sets `IN_USE` when the pass ends. Until then searches find the host
                    # in `opened`.
                    if name != IN_USE and column[0][at] != (amount := vector.get(name, 0)):
                        index.write(at, name, amount)

    def settle(self, hosts: Mapping[str, Host]) -> None:
        """Updates the derived columns of all hosts that got slots, and repairs the inner nodes of
        the trees.
        """
        # Update the derived columns first, so that the repair of the trees includes them.
        for index in (self.main, *self.selected.values()):
            for at in index.taken:
                self._derive(index, hosts[index.ids[at]], at)
            index.settle()

    def end_pass(self) -> None:
        """Clears the lists of hosts that got their first slots in the pass."""
        for index in (self.main, *self.selected.values()):
            index.opened.clear()

    def _derive(self, index: CapacityIndex, host: Host, at: int) -> None:
        columns = index.columns
        slots = columns[SLOTS][0][at]
        # If some host has a limit of slots, a pass lowers this column on all hosts. For a host
        # without a limit, the next lines restore the column.
        if slots != UNLIMITED and not host.executor.registration.slots_max:
            slots = UNLIMITED
            index.write(at, SLOTS, slots)
        index.write(at, DEFAULT_SLOTS, min(slots, index.room(at, host.default_need)))
        if self._settings.strategy != "pack":
            names = (*host.dimensions, SLOTS)
            free = {name: columns[name][0][at] for name in names if name in columns}
            for name, score in score_columns_of(host, self._settings.strategy, free).items():
                if name in columns:
                    index.write(at, name, score)

    def log_growth(self, host: Host, queue: WaitingQueue) -> None:
        """Makes all pending requests check this host again, although no free amount of the host has
        risen.
        """
        self.main.log_growth(host.host_id)
        self._unblock_in_main(queue)
        queue.non_batchables.grew(host.host_id, host.labels)
        for labels, index in self.selected.items():
            if host.carries(labels):
                index.log_growth(host.host_id)
                queue.unblock(labels)

    def remove(self, host: Host) -> None:
        """Removes a host from all indexes."""
        for label in self._labels.pop(host.host_id, {}).items():
            self._forget_carrier(label, host.host_id)
        self._put_into_kind(host.host_id, None)
        self._set_aligning(host.host_id, aligning=False)
        self.gpu_hosts.remove(host.host_id)
        for index in (self.main, *self.selected.values()):
            if index.knows(host.host_id):
                index.remove(host.host_id)

    def all(self) -> dict[Labels, CapacityIndex]:
        """Returns all indexes. The key is the selector."""
        return {(): self.main, **self.selected}

    def _unblock_in_main(self, queue: WaitingQueue) -> None:
        """Unblocks the classes that search the index of all hosts."""
        for labels in list(queue.blocked):
            # A class with its own index is unblocked when a number in that index rises.
            if labels not in self.selected:
                queue.unblock(labels)

    def _sort_by_cpus(self, host: Host) -> None:
        """Updates the lists that depend on a host's cpus and devices: hosts with GPUs, aligning
        hosts, and hosts by kind.
        """
        name = host.host_id
        self.gpu_hosts.update(host)
        if host.aligning != (name in self.aligning):
            self._set_aligning(name, aligning=host.aligning)
        kind = UNREPORTED if host.cpu_kind is None else host.cpu_kind
        if kind is not self._kind_of.get(name):
            self._put_into_kind(name, kind)

    def _set_aligning(self, host_id: str, *, aligning: bool) -> None:
        if aligning:
            self.aligning[host_id] = None
        elif host_id in self.aligning:
            del self.aligning[host_id]

    def _put_into_kind(self, host_id: str, kind: CpuKind | None) -> None:
        before = self._kind_of.pop(host_id, None)
        if before is not None:
            del self.kinds[before][host_id]
            if not self.kinds[before]:
                del self.kinds[before]
        if kind is not None:
            self._kind_of[host_id] = kind
            self.kinds.setdefault(kind, {})[host_id] = None

    def _label(self, host: Host) -> bool:
        """Updates the stored labels of a host. Returns True if the labels have changed."""
        name, before = host.host_id, self._labels.get(host.host_id, {})
        if before == host.labels:
            return False
        self._labels[name] = dict(host.labels)
        for label in before.items() - host.labels.items():
            self._forget_carrier(label, name)
        for label in host.labels.items() - before.items():
            self._carriers.setdefault(label, {})[name] = None
        return True

    def _forget_carrier(self, label: tuple[str, str], host_id: str) -> None:
        del self._carriers[label][host_id]
        if not self._carriers[label]:
            del self._carriers[label]


ReportNumbers = dict[str, tuple[str, int]]
"""For each executor: the id of its instance, and the number of its last processed report."""


class Hosts(dict[str, Host]):
    """All hosts, by id of the executor.

    Attributes:
        settings: the settings of the engine.
        indexes: the indexes of these hosts. The indexes are up to date after `refresh`.
        version: a counter that rises when a host is added or removed, and when the capacity of an
            empty host changes.
        in_use: the number of hosts that have slots.
        refusing: the hosts that refused a slot. Some of the refusals have possibly expired.
        labeled: the slots that have labels or rules about neighbors.
        touched: the hosts that have changed since the last `refresh`: they were removed, or their
            free capacity has possibly changed. If `touched` is empty, the indexes are up to date.
    """

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__()
        self.settings = settings
        self.indexes = Indexes(settings)
        self.version = 0
        self.in_use = 0
        self.refusing: dict[str, None] = {}
        self.touched: dict[str, None] = {}
        self.labeled = LabeledSlots()

    def __setitem__(self, host_id: str, host: Host) -> None:
        super().__setitem__(host_id, host)
        host.labeled = self.labeled

    def of(self, slot: Slot) -> Host:
        """Returns the host of a slot."""
        return self[slot.executor_id]

    def touch(self, host: Host) -> None:
        """Records that a host's free capacity has possibly changed."""
        self.touched[host.host_id] = None

    def refresh(self, queue: WaitingQueue) -> None:
        """Updates the indexes for the hosts that were touched. Unblocks requests that possibly fit
        now.
        """
        # Refresh the indexes even if all touched hosts were removed, because the trees must be
        # rebuilt.
        touched = [self[name] for name in sorted(self.touched) if name in self]
        self.touched.clear()
        self.indexes.refresh(touched, queue)

    def forget(self, host: Host) -> None:
        """Deletes a host."""
        del self[host.host_id]
        self.indexes.remove(host)
        self.touch(host)  # `refresh` must rebuild the indexes
        # Cached results about empty hosts possibly depend on this host. The new version makes these
        # results invalid.
        self.version += 1

    def report_numbers(self) -> ReportNumbers:
        """Returns the number of the last report of each executor, for `restore_report_numbers`."""
        return {
            name: (host.executor.registration.instance_id, host.executor.report_number)
            for name, host in self.items()
            if host.executor.report_number
        }

    def restore_report_numbers(self, report_numbers: ReportNumbers) -> None:
        """Restores report numbers that `report_numbers` returned before the state was reloaded from
        the database.

        With these numbers, the resource manager still rejects a late copy of an older registration.
        Without the numbers, the resource manager would treat the copy as a new registration, and
        would delete the slots that were placed after the older registration.
        """
        for name, (instance_id, report_number) in report_numbers.items():
            host = self.get(name)
            # A new instance of the executor starts with report number 1 again.
            if host is not None and host.executor.registration.instance_id == instance_id:
                host.executor.report_number = report_number
