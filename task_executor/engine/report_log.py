"""The numbering of the states that an executor puts on the wire.

Decides the number of each state, whether a report may say `unchanged`, and when the RM has heard of
a slot that ended by itself. Refuses to know how a state is sent.

Numbers only ever rise, over registrations too, so that a delayed older state can never look newer.
Every life of an executor has a range of its own. Should the count of lives be lost with the
checkpoint, the RM tells what it has taken in, and `continue_after` goes on above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from task_executor.engine.cpu_ledger import CpuConditions
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import EndedSlot, Slot, SlotKey

_NUMBERS_KEPT_MAX = 1_000
"""Sent and unacknowledged states that are remembered; beyond them a report is simply full."""

_NUMBERS_PER_START = 1 << 40
"""More states than one life of an executor sends; 8 million lives fit into 63 bits."""


@dataclass(frozen=True, slots=True)
class NumberedState:
    """One state as it goes onto the wire; the fields are those of SlotReport in slots.proto."""

    report_number: int
    rm_epoch: int
    command_number: int
    unchanged: bool = False
    base_report_number: int = 0
    slots: tuple[Slot, ...] = ()
    available: Mapping[str, int] = field(default_factory=dict)
    ended: tuple[EndedSlot, ...] = ()
    cpus: CpuConditions | None = None  # of the host; None where the state is `unchanged`


@dataclass
class ReportLog:
    """Numbers states and remembers what the RM has taken in."""

    report_number: int = 0
    _acknowledged: tuple[int, int] | None = None  # number and table version, if the RM has one
    _sent: dict[int, int] = field(default_factory=dict)  # number -> table version
    _ended: dict[SlotKey, tuple[EndedSlot, int]] = field(default_factory=dict)  # first sent as

    def full(self, table: SlotTable, *, rm_epoch: int, command_number: int) -> NumberedState:
        """The next state with everything in it."""
        slots = table.visible()
        return NumberedState(
            report_number=self._next(table.version),
            rm_epoch=rm_epoch,
            command_number=command_number,
            slots=slots,
            available=table.available_beside(slots),
            ended=self._ended_to_report(),
            cpus=table.cpus.conditions,
        )

    def next(self, table: SlotTable, *, rm_epoch: int, command_number: int) -> NumberedState:
        """The next state, `unchanged` where the RM already has these very slots."""
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
        """A slot ended by itself; told in every state until the RM acknowledges one."""
        self._ended.setdefault(slot.key, (slot, 0))

    def all_ended(self) -> tuple[EndedSlot, ...]:
        """Ended slots that the RM has not acknowledged, in order of their end."""
        return tuple(slot for slot, _ in self._ended.values())

    def acknowledge(self, report_number: int) -> bool:
        """The RM took in this state and everything before it.

        True if that struck out ended slots (and a checkpoint has less to keep).
        """
        version = self._sent.get(report_number)
        if version is not None:
            self._acknowledged = (report_number, version)
        elif self._acknowledged is None or report_number != self._acknowledged[0]:
            self._acknowledged = None
        self._sent = {n: v for n, v in self._sent.items() if n >= report_number}
        acknowledged = [
            key for key, (_, number) in self._ended.items() if 0 < number <= report_number
        ]
        for key in acknowledged:
            del self._ended[key]
        return bool(acknowledged)

    def start_numbering(self, starts: int) -> None:
        """Numbers go on above those of the lives before this start (1, 2, ...)."""
        self.report_number = max(self.report_number, starts * _NUMBERS_PER_START)

    def continue_after(self, report_number: int) -> None:
        """The RM has taken in this number, from an earlier life of this executor.

        The distance keeps what that life sent last, and what is still under way, below.
        """
        self.report_number = max(self.report_number, report_number + _NUMBERS_PER_START)

    def require_full_report(self) -> None:
        """The RM lost the base of `unchanged`, or is another one: the next state is full."""
        self._acknowledged = None

    def _next(self, version: int) -> int:
        self.report_number += 1
        self._sent[self.report_number] = version
        while len(self._sent) > _NUMBERS_KEPT_MAX:
            del self._sent[next(iter(self._sent))]
        return self.report_number

    def _ended_to_report(self) -> tuple[EndedSlot, ...]:
        for key, (slot, number) in self._ended.items():
            if not number:
                self._ended[key] = (slot, self.report_number)
        return self.all_ended()
