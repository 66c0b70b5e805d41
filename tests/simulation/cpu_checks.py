"""Checks that no cpu is dedicated to two slots and that every slot has a cpu to run on.

It uses only the assignments of slots, not the cpu ledgers of engine or executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrain.cpuset import EMPTY
from finegrain.neighbors import Level
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.state import State

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.slot_host import SlotHost

Key = tuple[str, int]


@dataclass
class CpuChecks:
    """Checks of cpu assignments."""

    pinned: int = 0  # number of slots with dedicated cpus
    _seen: set[Key] = field(default_factory=set)

    def decided(self, state: State, changes: Changes) -> Iterator[str]:
        """Checks after a batch that new slots got available cpus, and no cpu has two owners."""
        for slot in changes.slots:
            key = slot.allocation_id, slot.generation
            host = state.hosts.get(slot.executor_id)
            if key in self._seen or slot.assignment is None or host is None:
                continue
            self._seen.add(key)
            self.pinned += bool(slot.assignment.cpus)
            if taken := slot.assignment.cpus & host.present.taken:
                yield f"slot {key} was given cpus {taken} of {host.host_id}, which nobody may have"
        for host in state.hosts.values():
            yield from _neighbors(state, host)
            held = EMPTY
            for key, slot in host.slots.items():
                # The cpus of a slot that is being revoked are already booked for another slot,
                # which the executor gets only later; the check of the kernel's cpus sees both.
                if slot.revoked_for:
                    continue
                mine = slot.assignment.cpus if slot.assignment else EMPTY
                if slot.ordered is not None and slot.ordered.assignment is not None:
                    mine |= slot.ordered.assignment.cpus
                if both := held & mine:
                    yield f"cpus {both} of {host.host_id} are slot {key}'s and another's"
                held |= mine

    def healed(self, state: State, executor: Executor) -> Iterator[str]:
        """Checks that the engine and a healed executor agree."""
        host = state.hosts[executor.executor_id]
        for key, slot in host.slots.items():
            there = executor.on_host[key].assignment  # type: ignore[index]
            if slot.assignment != there:
                yield f"slot {key} has {there} on {executor.name}, the books say {slot.assignment}"
        if executor.machine is None:
            return
        setting = state.host_settings.get(executor.executor_id)
        follows = executor.table.cpus.conditions
        if setting is not None and (follows.policy_number, follows.operator_policy) != (
            setting.number,
            setting.policy,
        ):
            yield f"{executor.name} follows {follows.operator_policy}, set is {setting}"
        if host.lost_cpus:
            yield f"{executor.name} lacks {host.lost_cpus}, and all its cpus run"


def _neighbors(state: State, host: Host) -> Iterator[str]:
    """Checks that no slot is on the host of a slot that it must be apart from."""
    specs = [
        (slot.job_id, request.spec.cpu_policy)
        for slot in host.slots.values()
        # Other slots start after the end of a revoked slot.
        if not slot.revoked_for and (request := state.requests.get(slot.allocation_id)) is not None
    ]
    for at, (job_id, policy) in enumerate(specs):
        others = [other for job, other in specs[:at] + specs[at + 1 :] if job == job_id]
        for rule in policy.neighbors:
            counts = rule.apart and rule.required and rule.level is Level.HOST
            if counts and any(rule.selects(other.slot_labels) for other in others):
                yield f"a slot of {job_id} on {host.host_id} must be {rule}, but is not"


def exclusive(executor: SlotHost) -> Iterator[str]:
    """Checks the kernel's settings: each dedicated cpu has one owner, and every slot has a cpu."""
    held = EMPTY
    for key, spec in executor.on_host.items():
        mine = spec.assignment.cpus if spec.assignment else EMPTY
        if both := held & mine:
            yield f"cpus {both} of {executor.name} are {key}'s and another's in the kernel"
        held |= mine
    books = executor.table.cpus
    seen = books.conditions
    if seen.offline or seen.kubelet_cpus or books.policy.strictly_reserved_cpus:
        return  # a slot that has lost all its cpus continues to run where it is
    for slot in executor.table:
        if not books.binding_of(slot.spec).cpus:
            yield f"slot {slot.key} has no cpu left to run on at {executor.name}"
