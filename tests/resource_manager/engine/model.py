"""A tiny executor, so that the engine can be tested as one half of a conversation.

The executor follows the rules of slots.proto and task_executor.proto (numbering, fencing, reports),
and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import HostPolicy, QosClass
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
)
from resource_manager.engine.model.effects import (
    Effect,
    SendAllocate,
    SendFree,
    SendResize,
    StartExecutor,
    StopExecutor,
)
from resource_manager.engine.model.entities import (
    NO_CPU_STATE,
    CpuState,
    Instant,
    Registration,
    Resize,
    SlotState,
)
from resource_manager.engine.model.events import (
    CommandAnswered,
    CommandRefused,
    CommandUndelivered,
    Decide,
    Event,
    ExecutorRegistered,
    ItemOutcome,
    RegistrationAnswer,
    ReportAnswer,
    SlotsReported,
    Ticked,
)
from resource_manager.engine.model.reported import EndedSlot, Report, ReportedSlot
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import fresh, restore
from resource_manager.engine.step import step
from tests.resource_manager.engine.model_store import ModelStore

Key = tuple[str, int]
START_TIME_MS = 1_700_000_000_000
Sent = SendAllocate | SendFree | SendResize


@dataclass
class ModelExecutor:
    """One host's slot table. `broken` lists allocation ids that it can neither carve nor resize,
    `used` says how much memory slots use.
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
    slots: dict[Key, ReportedSlot] = field(default_factory=dict)
    ended: list[EndedSlot] = field(default_factory=list)
    rm_epoch: int = 0
    registration_number: int = 0
    report_number: int = 0
    command_number: int = 0
    answer: CommandAnswered | None = None
    base: tuple[int, Any] = (0, None)  # number and content of the last state that was acknowledged
    sent: tuple[int, Any, int] = (0, None, 0)  # of the last report: number, content, slots ended
    provided_as: str = ""
    hidden: dict[str, int] = field(default_factory=dict)  # taken by something the RM cannot know
    topology: str = "{}"
    host_cpus: str = "{}"
    cpu_state: CpuState = NO_CPU_STATE
    host_policy: HostPolicy | None = None  # what operators have set, as it was told

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
        )

    def available(self) -> dict[str, int]:
        booked = total_of(
            self._booking(slot.profile, slot.assignment) for slot in self.slots.values()
        )
        return subtract(subtract(self.total, booked), self.hidden)

    def _booking(
        self, profile: ResourceProfile, assignment: CpuAssignment | None
    ) -> dict[str, int]:
        best_effort = assignment is not None and assignment.qos is QosClass.BE
        separate = has_separate_pools(self.total)
        return booking(profile, separate_pools=separate, best_effort=best_effort)

    def report(self) -> Report:
        """The next numbered state."""
        self.report_number += 1
        self.sent = (self.report_number, self.content(), len(self.ended))
        return Report(
            report_number=self.report_number,
            rm_epoch=self.rm_epoch,
            command_number=self.command_number,
            slots=tuple(self.slots.values()),
            available=self.available(),
            ended=tuple(self.ended),
            cpu_state=self.cpu_state,
        )

    def content(self) -> Any:
        """What makes one state equal to another."""
        return tuple(self.slots.items()), tuple(sorted(self.available().items())), self.cpu_state

    def short_report(self) -> Report:
        """The next numbered state, said to be equal to the last one that was acknowledged."""
        self.report_number += 1
        self.sent = (self.report_number, self.content(), len(self.ended))
        return Report(
            self.report_number,
            self.rm_epoch,
            self.command_number,
            unchanged=True,
            base_report_number=self.base[0],
            ended=tuple(self.ended),
        )

    def acknowledged(self, number: int) -> None:
        """The RM has taken in the state of this number. It may not be the present one: what ended
        since it was sent has yet to be told.
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
        """Takes in what operators have set, and says so with the next full report."""
        self.host_policy = policy
        self.cpu_state = replace(self.cpu_state, host_policy_number=number)

    def drop(self, keys: tuple[Key, ...]) -> None:
        for key in keys:
            self.slots.pop(key, None)

    def end(self, key: Key, reason: str) -> None:
        """A slot ends by itself."""
        if self.slots.pop(key, None) is not None:
            self.ended.append(EndedSlot(key[0], key[1], reason))

    def finish_frees(self) -> None:
        """The processes of slots that are being freed are gone."""
        for key in [key for key, slot in self.slots.items() if slot.state is SlotState.FREEING]:
            del self.slots[key]

    def execute(self, effect: Sent, at: Instant, rm_epoch: int) -> Event:
        """Carries out a command, or refuses it as a whole."""
        last = self.answer
        if (
            rm_epoch < self.rm_epoch
            or effect.registration_number != self.registration_number
            or effect.command_number not in (self.command_number, self.command_number + 1)
            or (effect.command_number == self.command_number and last is None)
        ):
            return CommandRefused(
                at,
                self.executor_id,
                effect.registration_number,
                effect.command_number,
                "COMMAND_OUT_OF_ORDER",
            )
        if effect.command_number == self.command_number and last is not None:
            return replace(last, at=at)
        self.rm_epoch = max(self.rm_epoch, rm_epoch)
        self.command_number = effect.command_number
        if isinstance(effect, SendAllocate):
            outcomes = tuple(self._carve(order.slot) for order in effect.orders)
        elif isinstance(effect, SendResize):
            outcomes = (self._resize((effect.allocation_id, effect.generation), effect.resize),)
        else:
            outcomes = tuple(self.free((name, gen)) for name, gen, _ in effect.slots)
        self.answer = CommandAnswered(
            at,
            self.executor_id,
            effect.registration_number,
            effect.command_number,
            outcomes,
            self.report(),
        )
        return self.answer

    def _carve(self, slot: Any) -> ItemOutcome:
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
            isolation={"driver": "none"},
            assignment=slot.assignment,
        )
        return ItemOutcome(slot.allocation_id)

    def _cpu_problem(self, key: Key, assignment: CpuAssignment | None) -> str:
        """Why a slot cannot have these cpus to itself; empty: it can."""
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
        """All of it or nothing; the same number is the same change only with the same content."""
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
        self.slots[key] = changed
        return ItemOutcome(key[0])

    def free(self, key: Key) -> ItemOutcome:
        """Takes a slot down, slowly if that is its way."""
        slot = self.slots.get(key)
        if slot is not None and self.frees_slowly:
            self.slots[key] = _freeing(slot)
        else:
            self.slots.pop(key, None)
        return ItemOutcome(key[0])


def _freeing(slot: ReportedSlot) -> ReportedSlot:
    return replace(slot, state=SlotState.FREEING)


@dataclass(frozen=True, eq=False)
class OnTheWire:
    """A command that has not arrived yet, and the incarnation that sent it."""

    rm_epoch: int
    command: Sent


class ModelCluster:
    """The engine, its store and some executors, with a hand on every message between them."""

    def __init__(self, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.now_ms = 1_000
        self.store = ModelStore()
        self.executors: dict[str, ModelExecutor] = {}
        self.wire: list[OnTheWire] = []
        self.effects: list[Effect] = []  # of the last batch
        self.providers: list[StartExecutor | StopExecutor] = []  # what they were told to do
        self.state = fresh(self.settings, 1, self.at)

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, START_TIME_MS + self.now_ms)

    def batch(self, *events: Event) -> Any:
        """Events, a decision, a commit; the answer to the last event."""
        answer: Any = None
        self.effects = []
        for event in (*events, Decide(self.at)):
            result = step(self.state, event)
            self.effects.extend(result.effects)
            answer = answer if isinstance(event, Decide) else result.answer
        self.store.apply(self.state.changes.take())
        self.wire.extend(
            OnTheWire(self.state.rm_epoch, effect)
            for effect in self.effects
            if isinstance(effect, Sent)
        )
        self.providers += [
            each for each in self.effects if isinstance(each, StartExecutor | StopExecutor)
        ]
        return answer

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.batch(Ticked(self.at))

    def restart_rm(self, epoch: int | None = None) -> None:
        """A new incarnation from what the store holds, by default with the next epoch. Commands on
        the wire stay there.
        """
        epoch = epoch or self.state.rm_epoch + 1
        self.providers.clear()  # their work is lost with the process, or was done unheard
        self.state = restore(self.store.snapshot(epoch), self.settings, self.at)

    def register(self, executor: ModelExecutor) -> RegistrationAnswer:
        self.executors[executor.executor_id] = executor
        answer: RegistrationAnswer = self.batch(
            ExecutorRegistered(self.at, executor.registration(), executor.report())
        )
        executor.registered(answer, self.state.rm_epoch)
        return answer

    def report_of(self, executor: ModelExecutor) -> SlotsReported:
        """A new report, ready to be sent now or later."""
        return SlotsReported(
            self.at,
            executor.executor_id,
            executor.registration().instance_id,
            executor.registration_number,
            executor.report(),
        )

    def report(self, executor: ModelExecutor, held: SlotsReported | None = None) -> ReportAnswer:
        """Delivers a report (a new one, or one that was held back); the executor obeys."""
        event = replace(held, at=self.at) if held is not None else self.report_of(executor)
        answer: ReportAnswer = self.batch(event)
        if answer.acknowledged_report_number == executor.report_number:
            executor.acknowledged(executor.report_number)
        executor.drop(answer.unowned)
        if answer.host_policy_number:
            executor.follow(answer.host_policy, answer.host_policy_number)
        return answer

    def short_report(self, executor: ModelExecutor) -> ReportAnswer:
        """Delivers a report that repeats nothing; where that does not do, a full one follows."""
        held = replace(self.report_of(executor), report=executor.short_report())
        answer = self.report(executor, held)
        return self.report(executor) if answer.send_full_report else answer

    def deliver(self, sent: OnTheWire, *, lose_answer: bool = False) -> None:
        """A command arrives; its answer comes back or is lost, as it is if its sender has died."""
        self.wire.remove(sent)
        executor = self.executors.get(sent.command.executor_id)
        if executor is None:  # it is gone, and the RM has yet to find out
            if sent.rm_epoch == self.state.rm_epoch:
                self._undelivered(sent.command)
            return
        answer = executor.execute(sent.command, self.at, sent.rm_epoch)
        self.effects = []
        if sent.rm_epoch != self.state.rm_epoch:
            return
        if lose_answer:
            self._undelivered(sent.command)
        else:
            self.batch(answer)

    def fail(self, sent: OnTheWire) -> None:
        """A command does not arrive."""
        self.wire.remove(sent)
        if sent.rm_epoch == self.state.rm_epoch:
            self._undelivered(sent.command)

    def _undelivered(self, command: Sent) -> None:
        self.batch(
            CommandUndelivered(
                self.at,
                command.executor_id,
                command.registration_number,
                command.command_number,
                cause="connection refused",
            )
        )

    def settle(self, rounds: int = 50) -> None:
        """Delivers and reports until nothing is under way."""
        for _ in range(rounds):
            if not self.wire:
                return
            self.deliver(self.wire[0])
        raise AssertionError(f"still {len(self.wire)} commands under way: a livelock?")
