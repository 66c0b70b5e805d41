"""Numbers the slot reports of an executor and records which of them the RM has acknowledged.

Numbers only increase, across registrations and restarts, so a delayed older report never looks
newer. Each start of the executor has its own range of 2**40 numbers. If the count of starts is lost
with the checkpoint, the RM returns the highest number that it has received, and `continue_after`
continues above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.devices.condition import DeviceCondition
from task_executor.engine.cpu_ledger import CpuConditions
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import EndedSlot, Slot, SlotKey

_NUMBERS_KEPT_MAX = 1_000
"""How many sent and unacknowledged reports are remembered. Beyond that the next report is full."""

_NUMBERS_PER_START = 1 << 40
"""More numbers than one start of an executor uses; 8 million starts fit into 63 bits."""


@dataclass(frozen=True, slots=True)
class NumberedState:
    """The content of one report; the fields are those of SlotReport in slots.proto."""

    report_number: int
    rm_epoch: int
    command_number: int
    unchanged: bool = False
    base_report_number: int = 0
    slots: tuple[Slot, ...] = ()
    available: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[EndedSlot, ...] = ()
    cpus: CpuConditions | None = None  # of the host; None in an `unchanged` report
    device_conditions: tuple[DeviceCondition, ...] = ()


@dataclass
class ReportLog:
    """Numbers reports and remembers what the RM has acknowledged."""

    report_number: int = 0
    _acknowledged: tuple[int, int] | None = None  # number, table version; None: unknown
    _sent: dict[int, int] = field(default_factory=dict)  # report number -> table version
    _ended: dict[SlotKey, tuple[EndedSlot, int]] = field(default_factory=dict)  # 0: not sent

    def full(self, table: SlotTable, *, rm_epoch: int, command_number: int) -> NumberedState:
        """Returns the next report with everything in it.

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

    def next(self, table: SlotTable, *, rm_epoch: int, command_number: int) -> NumberedState:
        """Returns the next report; it is `unchanged` if the RM already has the present slots.

        Args:
            table: the slots to report.
            rm_epoch: the epoch that this executor obeys.
            command_number: the last command whose effects are in `table`.
        """
        # The table has changed since the acknowledged report, or it is not known what the RM has.
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
        """Adds a slot that ended by itself, for all reports until the RM acknowledges one."""
        # A known entry is not replaced. Its report number would be lost, and an acknowledgement
        # that is on its way would no longer remove it.
        self._ended.setdefault(slot.key, (slot, 0))

    def all_ended(self) -> tuple[EndedSlot, ...]:
        """Returns ended slots that the RM has not acknowledged, in the order of their ends."""
        return tuple(slot for slot, _ in self._ended.values())

    def acknowledge(self, report_number: int) -> bool:
        """Records that the RM has received this report and all earlier ones.

        Returns:
            True if ended slots were removed; the caller should then save a new checkpoint.
        """
        version = self._sent.get(report_number)
        if version is not None:
            self._acknowledged = (report_number, version)
        # The table version of this report is no longer known, so the next report must be full.
        elif self._acknowledged is None or report_number != self._acknowledged[0]:
            self._acknowledged = None
        self._sent = {n: v for n, v in self._sent.items() if n >= report_number}
        # Number 0 means that no report has contained this end yet, so the RM cannot know of it.
        acknowledged = [
            key for key, (_, number) in self._ended.items() if 0 < number <= report_number
        ]
        for key in acknowledged:
            del self._ended[key]
        return bool(acknowledged)

    def start_numbering(self, starts: int) -> None:
        """Continues above the numbers of all earlier starts; `starts` counts from 1."""
        self.report_number = max(self.report_number, starts * _NUMBERS_PER_START)

    def continue_after(self, report_number: int) -> None:
        """Continues above a number that the RM received from an earlier start of this executor.

        The distance is a whole range, because reports of that start may still be on their way.
        """
        self.report_number = max(self.report_number, report_number + _NUMBERS_PER_START)

    def require_full_report(self) -> None:
        """Makes the next report full.

        Needed if the RM may not have the slots that an `unchanged` report would refer to, for
        example because another RM has become the leader.
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
            # acknowledgement of that report, or of a later one, removes the entry.
            if not number:
                self._ended[key] = (slot, self.report_number)
        return self.all_ended()
