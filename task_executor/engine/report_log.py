"""Numbers the slot reports of an executor, and records which reports the RM has acknowledged.

Numbers only increase, even across registrations and restarts. So the RM can ignore a delayed older
report. Each start of the executor has its own range of 2**40 numbers. If the checkpoint is lost,
the count of starts is lost too. The RM then returns the highest number that it has received, and
`continue_after` continues above this number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from finegrain.devices.condition import DeviceCondition
from finegrain.values.isolation import Isolation
from task_executor.engine.cpu_ledger import CpuConditions
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import CarveState, EndedSlot, Slot, SlotKey

_NUMBERS_KEPT_MAX = 1_000
"""Maximum number of unacknowledged reports that are remembered.

If the RM acknowledges a report that the executor does not remember any more, the next report
contains the complete state.
"""

_NUMBERS_PER_START = 1 << 40
"""Size of the range of report numbers for one start of the executor. No start needs more numbers. 8
million such ranges fit into 63 bits.
"""


@dataclass(frozen=True, slots=True)
class NumberedState:
    """The content of one report.

    The fields correspond to the fields of SlotReport in slots.proto.
    """

    report_number: int
    rm_epoch: int
    command_number: int
    unchanged: bool = False
    base_report_number: int = 0
    slots: tuple[Slot, ...] = ()
    available: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[EndedSlot, ...] = ()
    cpus: CpuConditions | None = None  # None if the report is `unchanged`
    device_conditions: tuple[DeviceCondition, ...] = ()
    as_ordered: bool = False
    slot_isolation: Isolation | None = None


@dataclass(frozen=True, slots=True)
class DoneCommand:
    """A command that allocates or frees slots, and that the executor has carried out without an
    error.

    Attributes:
        known_report_number: the last report that the RM had accepted when it sent the command.
        keys: the slots of the command.
        allocates: True for AllocateSlots, False for FreeSlots.
    """

    known_report_number: int
    keys: Collection[SlotKey]
    allocates: bool


@dataclass
class ReportLog:
    """Numbers reports, and remembers which reports the RM has acknowledged."""

    report_number: int = 0
    # Report number and table version; None if they are not known.
    _acknowledged: tuple[int, int] | None = None
    _sent: dict[int, int] = field(default_factory=dict)  # report number -> table version
    # The slots that the last report describes.
    _described: dict[SlotKey, Slot] = field(default_factory=dict)
    _answered: int | None = None  # table version of the last report in an answer to a command
    # Ended slots, each with the number of the first report that contains it (0: not sent yet).
    _ended: dict[SlotKey, tuple[EndedSlot, int]] = field(default_factory=dict)

    def full(self, table: SlotTable, *, rm_epoch: int, command_number: int) -> NumberedState:
        """Returns the next report, with the complete state.

        Args:
            table: the slots to report.
            rm_epoch: the epoch that this executor obeys.
            command_number: the last command whose effects are in `table`.
        """
        slots = table.visible()
        return NumberedState(
            report_number=self._next(table.version, slots),
            rm_epoch=rm_epoch,
            command_number=command_number,
            slots=slots,
            available=table.available_beside(slots),
            ended=self._ended_to_report(),
            cpus=table.cpus.conditions,
            device_conditions=table.devices.conditions,
        )

    def answer(
        self,
        table: SlotTable,
        *,
        rm_epoch: int,
        command_number: int,
        done: DoneCommand | None = None,
    ) -> NumberedState:
        """Returns a report for the answer to a command. The RM repeats a command until it has
        received the answer.

        The report omits the slots if the RM knows the last report, and only the command has changed
        the slots since then.

        Args:
            table: the slots to report.
            rm_epoch: the epoch that this executor obeys.
            command_number: the number of the command.
            done: the command; None if the report must contain the complete state.
        """
        base, before = self.report_number, self._described
        self._answered = table.version
        state = self.full(table, rm_epoch=rm_epoch, command_number=command_number)
        if done is None or done.known_report_number != base:
            return state
        isolations = _isolations_as_ordered(before, self._described, done)
        if isolations is None or len(isolations) > 1:
            return state
        return replace(
            state,
            slots=(),
            as_ordered=True,
            base_report_number=base,
            slot_isolation=next(iter(isolations), None),
        )

    def has_news(self, table: SlotTable) -> bool:
        """Returns True if the last answer to a command does not contain the present state."""
        return bool(self._ended) or table.version != self._answered

    def next(self, table: SlotTable, *, rm_epoch: int, command_number: int) -> NumberedState:
        """Returns the next report. The report is `unchanged` if the RM already has the present
        slots.

        Args:
            table: the slots to report.
            rm_epoch: the epoch that this executor obeys.
            command_number: the last command whose effects are in `table`.
        """
        # Send the complete state if the table has changed since the acknowledged report, or if it
        # is unknown which slots the RM knows.
        if self._acknowledged is None or self._acknowledged[1] != table.version:
            return self.full(table, rm_epoch=rm_epoch, command_number=command_number)
        return NumberedState(
            report_number=self._next(table.version, table.visible()),
            rm_epoch=rm_epoch,
            command_number=command_number,
            unchanged=True,
            base_report_number=self._acknowledged[0],
            ended=self._ended_to_report(),
        )

    def ended(self, slot: EndedSlot) -> None:
        """Adds a slot that ended without an order. Reports contain this slot until the RM
        acknowledges one of these reports.
        """
        # Do not replace a known entry, because its report number would be lost. A later
        # acknowledgment of this report could then not remove the entry.
        self._ended.setdefault(slot.key, (slot, 0))

    def all_ended(self) -> tuple[EndedSlot, ...]:
        """Returns the ended slots that the RM has not acknowledged, the earliest first."""
        return tuple(slot for slot, _ in self._ended.values())

    def acknowledge(self, report_number: int) -> bool:
        """Records that the RM has received this report and all earlier reports.

        Returns:
            True if ended slots were removed. The caller should then save a new checkpoint.
        """
        version = self._sent.get(report_number)
        if version is not None:
            self._acknowledged = (report_number, version)
        # If the log no longer remembers the table version of this report, the next report must
        # contain the complete state.
        elif self._acknowledged is None or report_number != self._acknowledged[0]:
            self._acknowledged = None
        self._sent = {n: v for n, v in self._sent.items() if n >= report_number}
        # Number 0 means that no report has contained this end yet. So the RM cannot know this end.
        acknowledged = [
            key for key, (_, number) in self._ended.items() if 0 < number <= report_number
        ]
        for key in acknowledged:
            del self._ended[key]
        return bool(acknowledged)

    def start_numbering(self, starts: int) -> None:
        """Continues above the numbers of all earlier starts.

        Args:
            starts: the number of starts, including the present start.
        """
        self.report_number = max(self.report_number, starts * _NUMBERS_PER_START)

    def continue_after(self, report_number: int) -> None:
        """Continues above a number that the RM received from an earlier start of this executor.

        This method skips a whole range of numbers, because reports of the earlier start can still
        arrive at the RM.
        """
        self.report_number = max(self.report_number, report_number + _NUMBERS_PER_START)

    def require_full_report(self) -> None:
        """Makes the next report contain the complete state.

        The caller calls this method if the RM possibly does not know the slots, for example because
        another RM has become the leader. An `unchanged` report could then refer to a report that
        the RM does not know.
        """
        self._acknowledged = None

    def _next(self, version: int, slots: Iterable[Slot]) -> int:
        self.report_number += 1
        self._described = {slot.key: slot for slot in slots}
        self._sent[self.report_number] = version
        while len(self._sent) > _NUMBERS_KEPT_MAX:
            del self._sent[next(iter(self._sent))]
        return self.report_number

    def _ended_to_report(self) -> tuple[EndedSlot, ...]:
        for key, (slot, number) in self._ended.items():
            # The entry keeps the number of the first report that contains this end. An
            # acknowledgment of that report, or of a later one, removes the entry.
            if not number:
                self._ended[key] = (slot, self.report_number)
        return self.all_ended()


def _isolations_as_ordered(
    before: Mapping[SlotKey, Slot], now: Mapping[SlotKey, Slot], done: DoneCommand
) -> set[Isolation] | None:
    """Returns the isolations of the slots that a command has allocated.

    None: other slots have changed too, or a slot of the command is not as ordered.
    """
    keys = set(done.keys)
    others = {key: slot for key, slot in before.items() if key not in keys}
    if others != {key: slot for key, slot in now.items() if key not in keys}:
        return None
    if not done.allocates:
        return set() if keys.isdisjoint(now) else None
    slots = [now.get(key) for key in keys]
    if not all(slot is not None and _is_as_ordered(slot) for slot in slots):
        return None
    return {slot.isolation for slot in slots if slot is not None}


def _is_as_ordered(slot: Slot) -> bool:
    """Returns True if the order of a slot describes everything that a report would describe, except
    for the isolation.
    """
    return (
        slot.state is CarveState.ALLOCATED
        and not slot.spec.cpus
        and not slot.spec.resize_number
        and not slot.reuse_number
    )
