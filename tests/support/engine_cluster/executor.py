"""An executor in memory, the engine's counterpart in tests.

It implements the rules of slots.proto and task_executor.proto (numbering, fencing, reports) and
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import HostPolicy, QosClass
from finegrain.devices.condition import DeviceCondition
from finegrain.resources import (
    Amounts,
    ResourceProfile,
    add,
    booking,
    fits,
    has_separate_pools,
    shortfall,
    subtract,
    total_of,
    total_of_devices,
)
from finegrain.values.isolation import NOTHING_REPORTED, Isolation
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import SlotState
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.engine.model.entities import (
    NO_CPU_STATE,
    CpuState,
    Instant,
    Registration,
    Resize,
    Slot,
)
from resource_manager.engine.model.events import (
    CommandAnswered,
    CommandRefused,
    Event,
    RegistrationAnswer,
)
from resource_manager.engine.model.reported import EndedSlot, Report, ReportedSlot

_CARVED = Isolation(driver="none")
Key = tuple[str, int]
Command = SendAllocate | SendFree | SendResize


@dataclass
class FakeExecutor:
    """One executor with its slot table.

    Attributes:
        frees_slowly: slots stay FREEING until `finish_frees`.
        broken: allocation ids that it can neither carve nor resize.
        used: memory that slots use, in bytes.
        moving: how it answers an order to park or unpark a slot: IN_PROGRESS or PARK_FAILED. Empty:
            it has done it.
        base: number and content of the last acknowledged report.
        sent: number and content of the last report, and the number of ended slots in it.
        described: the slots as of the last report.
        hidden: amounts in use that the resource manager does not know.
        host_policy: the administrators' settings, as the resource manager sent them.
    """

    executor_id: str
    total: Amounts
    default_profile: ResourceProfile
    labels: tuple[tuple[str, str], ...] = ()
    slots_max: int = 0
    instance_id: str = ""
    frees_slowly: bool = False
    broken: set[str] = field(default_factory=set)
    used: dict[str, int] = field(default_factory=dict)
    moving: str = ""
    slots: dict[Key, ReportedSlot] = field(default_factory=dict)
    ended: list[EndedSlot] = field(default_factory=list)
    rm_epoch: int = 0
    registration_number: int = 0
    report_number: int = 0
    command_number: int = 0
    answer: CommandAnswered | None = None
    base: tuple[int, Any] = (0, None)
    sent: tuple[int, Any, int] = (0, None, 0)
    described: dict[Key, ReportedSlot] = field(default_factory=dict)
    provided_as: str = ""
    hidden: dict[str, int] = field(default_factory=dict)
    topology: str = "{}"
    host_cpus: str = "{}"
    cpu_state: CpuState = NO_CPU_STATE
    device_conditions: tuple[DeviceCondition, ...] = ()
    host_policy: HostPolicy | None = None
    isolation: Isolation = NOTHING_REPORTED

    def registration(self) -> Registration:
        return Registration(
            executor_id=self.executor_id,
            instance_id=self.instance_id or f"instance-of-{self.executor_id}",
            address=f"{self.executor_id}:7000",
            total=dict(self.total),
            reserved={},
            default_profile=self.default_profile,
            labels=self.labels,
            slots_max=self.slots_max,
            provided_as=self.provided_as,
            topology=self.topology,
            host_cpus=self.host_cpus,
            isolation=self.isolation,
        )

    def available(self) -> dict[str, int]:
        booked = total_of(map(self._present_booking, self.slots.values()))
        return subtract(subtract(self.total, booked), self.hidden)

    def _present_booking(self, slot: ReportedSlot) -> dict[str, int]:
        """Returns the booking of a slot, without devices that this executor no longer announces."""
        booked = self._booking(slot.profile, slot.assignment)
        shares = slot.assignment.devices if slot.assignment is not None else ()
        gone = total_of_devices(each for each in shares if each.uuid not in self.topology)
        return {name: max(amount - gone.get(name, 0), 0) for name, amount in booked.items()}

    def _booking(
        self, profile: ResourceProfile, assignment: CpuAssignment | None
    ) -> dict[str, int]:
        best_effort = assignment is not None and assignment.qos is QosClass.BE
        separate = has_separate_pools(self.total)
        return booking(profile, separate_pools=separate, best_effort=best_effort)

    def report(self) -> Report:
        """Returns the next numbered report."""
        self.report_number += 1
        self.sent = (self.report_number, self.content(), len(self.ended))
        self.described = dict(self.slots)
        return Report(
            report_number=self.report_number,
            rm_epoch=self.rm_epoch,
            command_number=self.command_number,
            slots=tuple(self.slots.values()),
            available=self.available(),
            ended=tuple(self.ended),
            cpu_state=self.cpu_state,
            device_conditions=self.device_conditions,
        )

    def content(self) -> Any:
        """Returns the content of a report; two equal contents may be reported as unchanged."""
        return (
            tuple(self.slots.items()),
            tuple(sorted(self.available().items())),
            self.cpu_state,
            self.device_conditions,
        )

    def short_report(self) -> Report:
        """Returns the next numbered report, as "unchanged since the last acknowledged one"."""
        self.report_number += 1
        self.sent = (self.report_number, self.content(), len(self.ended))
        self.described = dict(self.slots)
        return Report(
            self.report_number,
            self.rm_epoch,
            self.command_number,
            unchanged=True,
            base_report_number=self.base[0],
            ended=tuple(self.ended),
        )

    def acknowledged(self, number: int) -> None:
        """Records that the resource manager has received the report of this number.

        Slots that ended after this report stay in `ended` until a later report is acknowledged.
        """
        sent, content, ended = self.sent
        if number == sent:
            del self.ended[:ended]
            self.sent = (sent, content, 0)
            self.base = (number, content)

    def registered(self, answer: RegistrationAnswer, rm_epoch: int) -> None:
        self.rm_epoch = rm_epoch
        self.registration_number = answer.registration_number
        self.command_number = 0
        self.answer = None
        self.drop(answer.unowned)
        self.base = (0, None)
        self.follow(answer.host_policy, answer.host_policy_number)

    def follow(self, policy: HostPolicy | None, number: int) -> None:
        """Adopts the settings of the administrators. The next full report confirms the number of
        these settings.
        """
        self.host_policy = policy
        self.cpu_state = replace(self.cpu_state, host_policy_number=number)

    def drop(self, keys: tuple[Key, ...]) -> None:
        for key in keys:
            self.slots.pop(key, None)

    def start_limits_again(self, reused: tuple[tuple[str, int, int], ...]) -> None:
        """Starts the time limits of reused slots again; the next report confirms it."""
        for name, generation, number in reused:
            if (slot := self.slots.get((name, generation))) is not None:
                self.slots[name, generation] = replace(slot, reuse_number=number)

    def end(self, key: Key, reason: str) -> None:
        """Ends a slot without a command."""
        if self.slots.pop(key, None) is not None:
            self.ended.append(EndedSlot(key[0], key[1], reason))

    def finish_frees(self) -> None:
        """Removes all FREEING slots, as if their processes had ended."""
        for key in [key for key, slot in self.slots.items() if slot.state is SlotState.FREEING]:
            del self.slots[key]

    def execute(self, command: Command, at: Instant, rm_epoch: int) -> Event:
        """Executes a command, or refuses it as a whole."""
        last = self.answer
        if (
            rm_epoch < self.rm_epoch
            or command.registration_number != self.registration_number
            or command.command_number not in (self.command_number, self.command_number + 1)
            or (command.command_number == self.command_number and last is None)
        ):
            return CommandRefused(
                at,
                self.executor_id,
                command.registration_number,
                command.command_number,
                "COMMAND_OUT_OF_ORDER",
            )
        if command.command_number == self.command_number and last is not None:
            return replace(last, at=at)
        self.rm_epoch = max(self.rm_epoch, rm_epoch)
        self.command_number = command.command_number
        if isinstance(command, SendAllocate):
            outcomes = tuple(self._carve(order.slot) for order in command.orders)
        elif isinstance(command, SendResize):
            outcomes = (self._resize((command.allocation_id, command.generation), command.resize),)
        else:
            outcomes = tuple(self.free((name, gen)) for name, gen, _ in command.slots)
        self.answer = CommandAnswered(
            at,
            self.executor_id,
            command.registration_number,
            command.command_number,
            outcomes,
            self._report_of_answer(command, outcomes),
        )
        # An answer in short has no results; see AllocateSlotsResponse.
        if self.answer.report.as_ordered:
            self.answer = replace(self.answer, outcomes=())
        return self.answer

    def _report_of_answer(self, command: Command, outcomes: tuple[ItemOutcome, ...]) -> Report:
        """Returns the next report, in short if only the command has changed the slots."""
        base, before = self.report_number, self.described
        report = self.report()
        if isinstance(command, SendResize) or any(each.reason for each in outcomes):
            return report
        if isinstance(command, SendAllocate):
            keys = {(each.slot.allocation_id, each.slot.generation) for each in command.orders}
            expected = before | {key: self.slots[key] for key in keys}
        else:
            keys = {(name, generation) for name, generation, _ in command.slots}
            expected = {key: slot for key, slot in before.items() if key not in keys}
        if command.known_report_number != base or self.slots != expected:
            return report
        return replace(
            report,
            slots=(),
            as_ordered=True,
            base_report_number=base,
            slot_isolation=_CARVED if isinstance(command, SendAllocate) else None,
        )

    def _carve(self, slot: Slot) -> ItemOutcome:
        key = (slot.allocation_id, slot.generation)
        need = self._booking(slot.profile, slot.assignment)
        if slot.allocation_id in self.broken:
            return ItemOutcome(slot.allocation_id, "CARVE_FAILED", "cgroup could not be made")
        if any(name == slot.allocation_id for name, _ in self.slots):
            return ItemOutcome(slot.allocation_id, "ALREADY_EXISTS", "an older slot is here")
        if self.slots_max and len(self.slots) >= self.slots_max:
            return ItemOutcome(slot.allocation_id, "SLOT_LIMIT", "as many slots as allowed")
        if not fits(need, self.available()):
            return ItemOutcome(slot.allocation_id, "INSUFFICIENT_RESOURCES", "does not fit")
        if problem := self._cpu_problem(key, slot.assignment):
            return ItemOutcome(slot.allocation_id, "CPUS_UNAVAILABLE", problem)
        self.slots[key] = ReportedSlot(
            slot.allocation_id,
            slot.generation,
            slot.job_id,
            slot.profile,
            SlotState.ALLOCATED,
            slot.cpu_limit_milli,
            isolation=_CARVED,
            assignment=slot.assignment,
        )
        return ItemOutcome(slot.allocation_id)

    def _cpu_problem(self, key: Key, assignment: CpuAssignment | None) -> str:
        """Returns the reason why a slot cannot have these dedicated cpus; empty if it can."""
        if assignment is None:
            return ""
        if vanished := assignment.cpus & self.cpu_state.offline_cpus:
            return f"cpus {vanished} do not run"
        if taken := assignment.cpus & self.cpu_state.kubelet_cpus:
            return f"cpus {taken} are a kubelet's"
        reserved = self.host_policy.reserved_cpus if self.host_policy is not None else None
        if key not in self.slots and reserved and (kept := assignment.cpus & reserved):
            return f"cpus {kept} are reserved"
        for other, slot in self.slots.items():
            others = slot.assignment
            if other != key and others is not None and (both := assignment.cpus & others.cpus):
                return f"cpus {both} are those of {other}"
        return ""

    def _resize(self, key: Key, resize: Resize) -> ItemOutcome:
        """Applies a resize as a whole; a repeated number must come with the same content."""
        slot = self.slots.get(key)
        if slot is None or slot.state is SlotState.FREEING:
            return ItemOutcome(key[0], "SLOT_UNKNOWN", "no such slot")
        changed = replace(
            slot,
            profile=resize.profile,
            cpu_limit_milli=resize.cpu_limit_milli,
            resize_number=resize.number,
            assignment=resize.assignment or slot.assignment,
        )
        if resize.number <= slot.resize_number:
            return ItemOutcome(key[0], "" if changed == slot else "STALE_RESIZE", "known already")
        if key[0] in self.broken:
            return ItemOutcome(key[0], "CARVE_FAILED", "limits could not be written")
        need = self._booking(resize.profile, slot.assignment)
        has = self._booking(slot.profile, slot.assignment)
        if shortfall(need, add(self.available(), has)):
            return ItemOutcome(key[0], "INSUFFICIENT_RESOURCES", "does not fit")
        if problem := self._cpu_problem(key, changed.assignment):
            return ItemOutcome(key[0], "CPUS_UNAVAILABLE", problem)
        used, asked = self.used.get(key[0], 0), resize.profile.booked_memory_bytes
        if used > asked:
            details = (("asked", str(asked)), ("used", str(used)))
            return ItemOutcome(key[0], "BELOW_USE", f"uses {used} bytes", details)
        if self.moving and _is_parked(changed) != _is_parked(slot):
            return ItemOutcome(key[0], self.moving, "process 7 still uses the GPU")
        self.slots[key] = changed
        return ItemOutcome(key[0])

    def free(self, key: Key) -> ItemOutcome:
        """Removes a slot; with `frees_slowly` it becomes FREEING until `finish_frees`."""
        slot = self.slots.get(key)
        if slot is not None and self.frees_slowly:
            self.slots[key] = replace(slot, state=SlotState.FREEING)
        else:
            self.slots.pop(key, None)
        return ItemOutcome(key[0])


def _is_parked(slot: ReportedSlot) -> bool:
    return slot.assignment is not None and bool(slot.assignment.parked_devices)
