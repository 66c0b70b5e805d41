"""Checks properties that must always hold, whatever fails. It reads the whole state and changes
nothing.

After every batch with changes it checks all invariants of the engine's state. It checks requests
that ended earlier only from time to time. With many hosts, it checks only the entities that the
batch changed, and all entities from time to time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from finegrain.errors import InvariantBroken, Reason
from finegrain.resources import total_of
from finegrain.values.states import RequestState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.invariants.all import check_invariants, check_touched
from resource_manager.engine.model.effects import (
    Changes,
    Effect,
    PublishClusterEvent,
    PublishJobEvent,
    SendFree,
)
from resource_manager.engine.model.entities import ENDED_REQUEST_STATES, Group, JobEvent
from resource_manager.engine.model.events import RegistrationAnswer, ReportAnswer
from resource_manager.engine.state import State
from resource_manager.storage import tables
from resource_manager.storage.rows import EXECUTORS
from task_executor.engine.slots import CarveState, SlotKey
from tests.simulation.cpu_checks import CpuChecks, exclusive
from tests.simulation.device_checks import DeviceChecks
from tests.simulation.fair_checks import FairChecks
from tests.simulation.gang_checks import GangChecks, room_for_gangs
from tests.simulation.idle_checks import idle_capacity
from tests.simulation.job_checks import JobChecks
from tests.simulation.priority_checks import PriorityChecks
from tests.simulation.provision_checks import ProvisionChecks
from tests.simulation.rejection_checks import RejectionChecks
from tests.simulation.resize_checks import ResizeChecks, enforced_beyond_books, in_use
from tests.simulation.revocation_checks import RevocationChecks
from tests.simulation.time_checks import TimeChecks
from tests.simulation.usage_checks import UsageChecks

if TYPE_CHECKING:
    from tests.simulation.database import Database
    from tests.simulation.executor import Executor
    from tests.simulation.job_master import JobMaster
    from tests.simulation.manager import Manager
    from tests.simulation.slot_host import SlotHost

MANY_HOSTS = 50
FULL_CHECK_EVERY = 500
ENDED_CHECK_EVERY = 20
ALONE_SLACK_MS = 6_000
RESTORE_SETTLES_MS = 10_000
_GRANTS: dict[str, str] = {Reason.RESIZED: "resizes", Reason.RESIZE_REFUSED: "resizes refused"}


class Violation(AssertionError):
    """A property that must hold is violated."""


class Checks:
    """Checks the state of all resource managers, executors and job masters."""

    def __init__(self) -> None:
        self.executors: dict[str, Executor] = {}
        self.destroyed_executors: dict[str, Executor] = {}
        self.gangs, self.resizes = GangChecks(), ResizeChecks()
        self.provisions = ProvisionChecks()
        self.usage = UsageChecks()
        self.fair = FairChecks()
        self.priorities = PriorityChecks()
        self.times, self.jobs = TimeChecks(), JobChecks()
        self.revocations = RevocationChecks()
        self.cpus = CpuChecks()
        self.devices = DeviceChecks()
        self.restores = 0
        self.rejections = RejectionChecks()
        self.masters: dict[str, JobMaster] = {}
        self.database: Database
        self.did: Counter[str] = Counter()
        self._placed: dict[SlotKey, str] = {}  # for each slot, the executor on which it was carved
        # slots that the state has lost in a restore from a backup
        self._outlived: dict[str, set[SlotKey]] = {}
        self._promised_to_pools: dict[str, str] = {}  # acknowledged request to job
        self._in_use: dict[str, dict[str, int]] = {}
        self._events: dict[tuple[str, int], JobEvent] = {}
        self._epoch = 0
        self._led_at_ms = 0
        self._restored_at_ms: int | None = None
        self._admitted: dict[tuple[str, str], int] = {}
        # number of identities that hosts of a name have had
        self.identities: Counter[str] = Counter()
        # For each executor, the time of the last answer of a manager.
        self._contact_ms: dict[str, int] = {}
        # slots by executor, as seen by `alone`
        self._here_since_ms: dict[str, dict[SlotKey, int]] = {}
        # For each executor, the time at which it sent the last accepted report.
        self._reported_ms: dict[str, int] = {}
        # for each job: the time of the last answered keep-alive, and the lease
        self._kept_alive: dict[str, tuple[int, int]] = {}
        self._lapsed_ms: dict[str, int] = {}

    @property
    def now_ms(self) -> int:
        return self.database.loop.now_ms

    def require(self, problems: Iterable[str]) -> None:
        """Raises `Violation` with the first few problems, if there are any."""
        found = list(problems)
        if found:
            raise Violation("\n".join(found[:5]))

    # -- resource managers -------------------------------------------------------------------

    def led(self, epoch: int) -> None:
        """A resource manager has become the leader."""
        if epoch <= self._epoch:
            raise Violation(f"epoch {epoch} is led after epoch {self._epoch}")
        self._epoch, self._led_at_ms = epoch, self.now_ms

    def speaks(self, manager: Manager) -> None:
        """A resource manager is about to send effects and answers."""
        if not self.database.leads(manager.holder, manager.epoch):
            raise Violation(
                f"{manager.name} speaks at epoch {manager.epoch}, but {self.database.holder}"
                f" leads at {self.database.rm_epoch}"
            )

    def writes(self, holder: str, epoch: int) -> None:
        """A transaction is about to become durable."""
        if epoch != self.database.rm_epoch:
            raise Violation(f"{holder} writes at epoch {epoch} in {self.database.rm_epoch}")

    def saw_epoch(self, manager: Manager, seen: int) -> None:
        """A manager steps down because an executor knows a newer epoch."""
        if self.database.leads(manager.holder, manager.epoch):
            raise Violation(f"{manager.name} leads, and steps down over epoch {seen}")

    def books(self, state: State) -> None:
        """A resource manager has started and read its state."""
        self.require(check_invariants(state))
        self.require(
            f"acknowledged request {name} is forgotten"
            for name, job_id in self._promised_to_pools.items()
            if job_id in state.jobs and state.requests.named(name) is None
        )
        self.require(self.resizes.books(state))
        self.gangs.books()
        self.resizes.begin()

    def decided(
        self, manager: Manager, effects: list[Effect], changes: Changes, *, idle: bool
    ) -> None:
        """A batch was decided and is not durable yet; `idle`: it had only keep-alive calls."""
        self.did["batches"] += 1
        state = manager.state
        many = len(state.hosts) > MANY_HOSTS
        if not many and not idle:
            self._look_at_all(state, changes)
        elif many:
            self._touched(state, changes)
        if not idle:
            self.require(self.gangs.decided(state, effects, changes))
            self.require(self.provisions.decided(state, changes))
            self.require(self.rejections.decided(state, effects, self.now_ms))
            self.require(self.cpus.decided(state, changes))
            if not many:
                self.require(self.fair.decided(state, effects))
                self.require(self.times.decided(state, effects, self.now_ms))
                self.require(self.jobs.decided(state, changes))
                self.require(self.priorities.decided(state, effects))
                self.require(self.revocations.decided(state, effects))
        if self.database.leads(manager.holder, manager.epoch):
            hosts = _hosts_of(state, changes) if many else state.hosts.values()
            self.require(self._orders_without_slots(hosts))
            if not idle:
                self.require(self.devices.decided(state, changes))
                self.require(self.devices.lost_work(state, changes))
            for effect in effects:
                if isinstance(effect, PublishJobEvent):
                    self._missing(effect.event)
                elif isinstance(effect, PublishClusterEvent):
                    self._lost(state, effect)
        for effect in effects:
            if isinstance(effect, SendFree):
                self.nobody_owns(state, [(name, number) for name, number, _ in effect.slots])

    def _look_at_all(self, state: State, changes: Changes) -> None:
        """Checks all entities, but requests that ended earlier only from time to time."""
        now_and_then = self.did["batches"] % ENDED_CHECK_EVERY == 0
        self.require(check_invariants(state, ended=now_and_then))
        self.require(check_touched(state, (*changes.requests, *changes.moved_requests), ()))
        self.require(idle_capacity(state))
        self.require(room_for_gangs(state))
        self.require(self.resizes.decided(state))
        self.require(self.resizes.waiting(state))

    def _touched(self, state: State, changes: Changes) -> None:
        if self.did["batches"] % FULL_CHECK_EVERY == 0:
            self.require(check_invariants(state))
            self.require(idle_capacity(state))
        hosts = [host.host_id for host in _hosts_of(state, changes)]
        touched = [*changes.requests, *changes.moved_requests]
        self.require(check_touched(state, touched, hosts))

    def _orders_without_slots(self, hosts: Iterable[Host]) -> Iterator[str]:
        """Yields slots that were ordered and carved but are no longer booked."""
        for host in hosts:
            if host.in_flight is not None and host.in_flight.allocates:
                table = self.at(host.executor.registration.address).table
                for key in host.in_flight.keys:
                    if key not in host.slots and table.get(SlotKey(*key)) is not None:
                        yield f"slot {key} exists at {host.host_id}, but is booked no longer"

    def nobody_owns(self, state: State, keys: Iterable[tuple[str, int]]) -> None:
        """Requires that no living request has the slots that are about to be freed."""
        self.require(
            f"slot {name}/{generation} is freed, but its request is {request.state}"
            for name, generation in keys
            if (request := state.requests.get(name)) is not None
            and request.generation == generation
            and request.state in (RequestState.GRANTED, RequestState.ALLOCATING)
        )

    def answered(self, state: State, answer: object) -> None:
        """Checks the slots that an answer tells an executor to free, and notes changed groups."""
        if isinstance(answer, ReportAnswer | RegistrationAnswer):
            self.nobody_owns(state, answer.unowned)
        if isinstance(answer, Group):
            self.fair.group_was_decided(answer)

    def _missing(self, event: JobEvent) -> None:
        if event.reason != Reason.SLOT_MISSING or event.slot is None:
            return
        executor = self.at(str(event.slot["executor_address"]))
        key = SlotKey(event.allocation_id, int(str(event.slot["generation"])))
        slot = executor.table.get(key)
        if executor.up and slot is not None and slot.state is CarveState.ALLOCATED:
            raise Violation(f"slot {key} is called missing, but {executor.name} has it")

    def _lost(self, state: State, effect: PublishClusterEvent) -> None:
        """Checks that an executor is lost only after a full timeout of silence.

        Only the time in which this manager led counts.
        """
        event = effect.event
        if event.kind == "executor_lost" and not self.provisions.is_over(event.executor_id):
            timeout_ms = state.settings.lost_timeout_ms
            heard_ms = max(self._reported_ms.get(event.executor_id, 0), self._led_at_ms)
            if self.now_ms - heard_ms < timeout_ms:
                raise Violation(
                    f"{event.executor_id} is lost {self.now_ms - heard_ms} ms after it was heard,"
                    f" or the manager began; {timeout_ms} ms are its right"
                )

    def stored(self, changes: Changes) -> None:
        """A transaction is now durable. It may have deleted jobs. Then their names may be used
        again.
        """
        self.require(self.resizes.stored(changes))
        self.require(self.provisions.stored(changes))
        self.usage.stored(changes)
        self.require(self.fair.stored(changes))
        gone = self._forgotten(changes)
        self.fair.forgotten(gone)
        for name in gone:
            self._promised_to_pools.pop(name, None)
        for master in self.masters.values() if gone else ():
            master.acknowledged -= gone
        for job_id in changes.deleted_jobs:
            self._events = {k: v for k, v in self._events.items() if k[0] != job_id}
            self._lapsed_ms.pop(job_id, None)

    def _forgotten(self, changes: Changes) -> set[str]:
        """Returns requests that are no longer known.

        A member of a range may have lost its row and still be known.
        """
        rows = self.database.rows
        names = {name for name in changes.deleted_requests if not rows.has(name)}
        ranges = {range_id for range_id, _ in changes.deleted_ranges}
        if ranges:
            names |= {
                name
                for name in self._promised_to_pools
                if name.rpartition(".")[0] in ranges and not rows.has(name)
            }
        return names

    def durable(self, effects: list[Effect], decided_ms: int) -> None:
        """The manager knows that a batch, decided at `decided_ms`, is committed."""
        for effect in effects:
            if isinstance(effect, PublishJobEvent):
                if effect.event.state is RequestState.GRANTED:
                    self.did[_GRANTS.get(effect.event.reason, "grants")] += 1
                self.did["ends"] += effect.event.state in ENDED_REQUEST_STATES
            elif isinstance(effect, PublishClusterEvent):
                event = effect.event
                if event.kind == "job_ended" and event.reason == Reason.LEASE_EXPIRED:
                    self._lapsed_ms.setdefault(event.job_id, decided_ms)
                    self._lapse(event.job_id)

    def restored(self) -> None:
        """A backup replaced the database, so the checks forget all later changes."""
        rows = self.database.rows
        self._promised_to_pools = {k: v for k, v in self._promised_to_pools.items() if rows.has(k)}
        self._restored_at_ms = self.now_ms
        self.restores += 1
        self.devices.restored()
        self._events.clear()
        self._placed.clear()
        self._lapsed_ms.clear()
        self._kept_alive.clear()
        self.resizes.restored(self.database.rows.keyed(tables.slots))
        self.usage.forget()
        self.fair.older_books()
        self.times.restored()
        self._outlived = {name: set(each.on_host) for name, each in self.executors.items()}
        for master in self.masters.values():
            master.acknowledged = {name for name in master.acknowledged if rows.has(name)}

    # -- executors ---------------------------------------------------------------------------

    def at(self, address: str) -> Executor:
        """Returns the executor that serves, or served, at an address."""
        name = address.partition(":")[0]
        return self.executors.get(name) or self.destroyed_executors[name]

    def destroyed(self, executor: Executor) -> None:
        """The executor's machine was destroyed."""
        self.executors.pop(executor.name, None)
        self.destroyed_executors[executor.name] = executor

    def host(self, executor: SlotHost) -> None:
        """The slots of a host have changed."""
        try:
            executor.table.check_invariants()
        except InvariantBroken as error:
            raise Violation(f"{executor.name}: {error}") from error
        total = executor.share.total
        real = total_of(in_use(executor, key) for key in executor.on_host)
        before = self._in_use.get(executor.name, {})
        self._in_use[executor.name] = real
        # If a restart has reduced a share, slots that already exist may use more than the share.
        if any(amount > max(total.get(n, 0), before.get(n, 0)) for n, amount in real.items()):
            raise Violation(f"{executor.name} really has {real} of {dict(total)} in use")
        self.require(enforced_beyond_books(executor))
        if executor.machine is not None:
            self.require(exclusive(executor))
        if executor.hardware.devices:
            self.require(self.devices.on_host(executor))
        outlived = self._outlived.get(executor.name, set())
        for key in executor.on_host:
            if key not in outlived and self._placed.setdefault(key, executor.name) != executor.name:
                raise Violation(f"{key} is on {executor.name} and was on {self._placed[key]}")

    def recovered(self, executor: Executor) -> None:
        """An executor has read its checkpoint. It must now know everything that its identity has
        reported.

        Slots in the database belong to the identity that registered last. A new identity has
        reported nothing before it registers. So it may find slots of the former identity at several
        starts.
        """
        epoch = self._admitted.get((executor.name, executor.instance_id), 0)
        if executor.fence.rm_epoch < epoch:
            raise Violation(f"{executor.name} obeyed epoch {epoch}, and has forgotten it")
        known = self.database.rows.row(tables.executors, (executor.executor_id,))
        if known and EXECUTORS.decode(known).registration.instance_id == executor.instance_id:
            table, rows = executor.table, self.database.rows.keyed(tables.slots)
            self.require(
                f"{executor.name} has told of slot {key}, and forgot it when it started again"
                for key in executor.on_host
                if table.get(key) is None and (row := rows.get(key)) and row[8] == "ALLOCATED"
            )

    def admitted(self, executor: SlotHost, rm_epoch: int) -> None:
        """An executor is about to execute a command of that epoch."""
        who = (executor.name, executor.instance_id)
        if rm_epoch < self._admitted.get(who, 0):
            raise Violation(
                f"{executor.name} obeys epoch {rm_epoch} after epoch {self._admitted[who]}"
            )
        self._admitted[who] = rm_epoch

    def contact(self, executor: Executor, *, reported_ms: int | None = None) -> None:
        """An executor got an answer of a manager.

        Args:
            executor: the executor.
            reported_ms: the time at which it sent the accepted report; None: no report was
                accepted.
        """
        self._contact_ms[executor.name] = self.now_ms
        if reported_ms is not None:
            self._reported_ms[executor.executor_id] = reported_ms
            self.times.reported(executor, reported_ms)

    def alone(self) -> None:
        """Checks now and then that executors without contact give up their slots in time, and end
        slots at their time limits.
        """
        self.require(self.times.running(self.executors.values()))
        for executor in self.executors.values():
            went_on_ms = self.now_ms - executor.stopped_until_ms  # below zero: it is stopped
            if executor.orphan_ms is None or not executor.up or went_on_ms < ALONE_SLACK_MS:
                continue
            here = {s.key for s in executor.table if s.state is CarveState.ALLOCATED}
            before = self._here_since_ms.get(executor.name, {})
            since = {key: before.get(key, self.now_ms) for key in sorted(here)}
            self._here_since_ms[executor.name] = since
            alone_ms = self.now_ms - self._contact_ms[executor.name]
            if alone_ms > executor.orphan_ms + ALONE_SLACK_MS:
                kept = [key for key, at in since.items() if self.now_ms - at > ALONE_SLACK_MS]
                if kept:
                    raise Violation(f"{executor.name} is alone for {alone_ms} ms and keeps {kept}")

    # -- job masters -------------------------------------------------------------------------

    def acknowledged(self, job_id: str, names: set[str]) -> set[str]:
        """Returns the acknowledged requests that a job master may rely on from now on.

        Answers from before a restore may still be in transit.
        """
        restored_ms = self._restored_at_ms
        if restored_ms is not None and self.now_ms - restored_ms < RESTORE_SETTLES_MS:
            names = {name for name in names if self.database.rows.has(name)}
        self._promised_to_pools.update(dict.fromkeys(sorted(names), job_id))
        return names

    def told(self, event: JobEvent) -> None:
        """Checks that a number of a job's log always denotes the same event."""
        known = self._events.setdefault((event.job_id, event.sequence), event)
        if known != event:
            raise Violation(f"event {event.sequence} of {event.job_id} was {known}, is {event}")

    def kept_alive(self, job_id: str, sent_ms: int, lease_ms: int) -> None:
        """The manager has answered a keep-alive call that was sent at `sent_ms`."""
        self._kept_alive[job_id] = (max(sent_ms, self._kept_alive.get(job_id, (0, 0))[0]), lease_ms)
        self._lapse(job_id)

    def _lapse(self, job_id: str) -> None:
        lapsed_ms, kept = self._lapsed_ms.get(job_id), self._kept_alive.get(job_id)
        if lapsed_ms is not None and kept is not None and 0 <= lapsed_ms - kept[0] < kept[1]:
            raise Violation(
                f"the lease of {job_id} lapsed at {lapsed_ms}, but its sign of life of {kept[0]}"
                f" was good for {kept[1]} ms"
            )


def _hosts_of(state: State, changes: Changes) -> list[Host]:
    names = {slot.executor_id for slot in (*changes.slots, *changes.moved_slots)}
    names |= {executor.executor_id for executor in changes.executors}
    return [state.hosts[name] for name in sorted(names) if name in state.hosts]
