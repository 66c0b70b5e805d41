"""Numbers the slot reports of an executor, and records which reports the RM has acknowledged.

Numbers only increase, even across registrations and restarts. So the RM can ignore a delayed older
report. Each start of the executor has its own range of 2**40 numbers. If the checkpoint is lost,
the count of starts is lost too. The RM then returns the highest number that it has received, and
`continue_after` continues above this number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.devices.condition import DeviceCondition
from task_executor.engine.cpu_ledger import CpuConditions
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import EndedSlot, Slot, SlotKey

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


@dataclass
class ReportLog:
    """Numbers reports, and remembers which reports the RM has acknowledged."""

    report_number: int = 0
    # Report number and table version; None if they are not known.
    _acknowledged: tuple[int, int] | None = None
    _sent: dict[int, int] = field(default_factory=dict)  # report number -> table version
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
            report_number=self._next(table.version),
            rm_epoch=rm_epoch,
            command_number=command_number,
            slots=slots,
            available=table.available_beside(slots),
            ended=self._ended_to_report(),
            cpus=table.cpus.conditions,
            device_conditions=table.devices.conditions,
        )

    def answer(self, table: SlotTable, *, rm_epoch: int, command_number: int) -> NumberedState:
        """Returns a report with the complete state, for the answer to a command. The RM repeats a
        command until it has received the answer.
        """
        self._answered = table.version
        return self.full(table, rm_epoch=rm_epoch, command_number=command_number)

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
            report_number=self._next(table.version),
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

    def _next(self, version: int) -> int:
        self.report_number += 1
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
