"""Says what an action of an administrator would change, before it happens.

A preview reads the state and changes nothing. It says which slots and jobs an action concerns, and
whether other executors have room for these slots now. For a change of the weight or the limits of a
group, the preview says which shares would change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from finegrain.cpuset import CpuSet
from finegrain.values.states import SlotState
from resource_manager.engine.executors.device_cordons import known_device
from resource_manager.engine.executors.host_settings import checked_policy, policy_after
from resource_manager.engine.explain.groups import entitlements
from resource_manager.engine.fairness.quotas import used_of
from resource_manager.engine.hosts.allowed_cpus import CLUSTER
from resource_manager.engine.jobs.groups import changed_group, known_group
from resource_manager.engine.lifecycle.known import known_host, known_job, known_request
from resource_manager.engine.model.entities import Request, Slot
from resource_manager.engine.model.events import GroupSet, HostPolicySet
from resource_manager.engine.model.scheduling_key import SchedulingKey, scheduling_key
from resource_manager.engine.placement.tentative import Members, TentativePlacer
from resource_manager.engine.queue.gangs import MemberRequest
from resource_manager.engine.state import State

SLOTS_MAX = 1_000
"""The largest number of slots of one preview for which another executor is sought. Each search
takes up to about 50 us, and the resource manager handles no events in this time.
"""


@dataclass(frozen=True, slots=True)
class SlotPreview:
    """A slot that an action concerns.

    Attributes:
        slot: the slot.
        job_name: the name of its job.
        group: the group of its job.
        other_executor_id: an executor that has room for the slot now, in addition to the slots
            before it in the preview. It is empty if there is no such executor, or if no executor
            was sought.
    """

    slot: Slot
    job_name: str
    group: str
    other_executor_id: str = ""


@dataclass(frozen=True, slots=True)
class SharePreview:
    """The shares of a group before and after an action.

    Attributes:
        group: the name of the group.
        share_now: the group's part of the present usage.
        before: the share that the group is entitled to now.
        after: the share to which the group would be entitled after the action.
        exceeded: the dimensions in which the group would use more than its new maximum. The group
            would keep its slots, and its requests would wait.
        below_minimum: the dimensions in which the group would use less than its new minimum. Its
            waiting requests would be served first.
    """

    group: str
    share_now: float
    before: float
    after: float
    exceeded: tuple[str, ...] = ()
    below_minimum: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SettingPreview:
    """A setting of hosts before and after an action, as text.

    Attributes:
        executors: the number of executors on which the setting has these two values.
    """

    name: str
    before: str
    after: str
    executors: int


PREVIEWED_SETTINGS = (
    "bind",
    "numa_strategy",
    "alignment",
    "reserved_cpus",
    "strictly_reserved_cpus",
    "default_bind",
    "default_exclusive",
)
"""The settings in effect that a preview compares."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of an action.

    Attributes:
        slots: the first `SLOTS_MAX` slots that the action concerns.
        slots_total: the number of all slots that the action concerns.
        waiting: the number of queued requests that the action would cancel.
        sought: True if another executor was sought for the slots.
        shares: the shares of the groups whose shares would change, and of the group that the action
            changes.
        on_other_devices: for a cordon, the number of slots of the executor that have only other
            devices.
        without_devices: for a cordon, the number of slots of the executor without devices.
        settings: for a host policy, the settings in effect that would change.
        executors: for a host policy, the number of executors on which a setting would change.
    """

    slots: Sequence[SlotPreview] = ()
    slots_total: int = 0
    waiting: int = 0
    sought: bool = False
    shares: Sequence[SharePreview] = ()
    on_other_devices: int = 0
    without_devices: int = 0
    settings: Sequence[SettingPreview] = ()
    executors: int = 0

    @property
    def jobs(self) -> int:
        """The number of jobs in `slots`."""
        return len({each.slot.job_id for each in self.slots})

    @property
    def moving(self) -> int:
        """The number of slots in `slots` for which another executor has room."""
        return sum(bool(each.other_executor_id) for each in self.slots)


@dataclass(frozen=True, slots=True)
class Previews:
    """Previews actions.

    Attributes:
        state: the engine's state. Its indexes must be up to date. Before `group` is called, the
            fairness tree must have been advanced to the present.
    """

    state: State

    def drain(self, executor_id: str) -> Preview:
        """Returns the slots of an executor, and other executors that have room for these slots.

        Raises:
            NotFound: the executor does not exist.
        """
        host = known_host(self.state.hosts, executor_id)
        return self._moved(host.slots.values(), executor_id)

    def cordon(self, executor_id: str, device: str) -> Preview:
        """Returns the slots that have a share of a device, and other executors that have room for
        these slots. Counts the other slots of the executor.

        Raises:
            NotFound: the executor or the device does not exist.
        """
        host = known_host(self.state.hosts, executor_id)
        uuid = known_device(host, device).uuid
        users, others, without = [], 0, 0
        for each in host.slots.values():
            has = () if each.assignment is None else each.assignment.devices
            if any(share.uuid == uuid for share in has):
                users.append(each)
            elif each.state is not SlotState.FREEING:
                others += bool(has)
                without += not has
        found = self._moved(users, executor_id)
        return replace(found, on_other_devices=others, without_devices=without)

    def release(self, allocation_ids: Iterable[str]) -> Preview:
        """Returns the slots that would be released, and how many requests would be cancelled.

        Raises:
            NotFound: a request does not exist.
        """
        slots, waiting = [], 0
        for name in allocation_ids:
            request = known_request(self.state.requests, name)
            slot = self.state.slots.of(request)
            if slot is not None:
                slots.append(slot)
            elif request.end_time_ms is None:
                waiting += 1
        return self._listed(slots, waiting=waiting)

    def end_job(self, job_id: str) -> Preview:
        """Returns the slots of a job, and the number of its queued requests.

        Raises:
            NotFound: the job does not exist.
        """
        job = known_job(self.state.jobs, job_id)
        flow = self.state.flows.jobs.get(job_id)
        slots = [self.state.slots[key] for key in job.slot_keys if key in self.state.slots]
        return self._listed(slots, waiting=0 if flow is None else flow.waiting)

    def group(self, event: GroupSet) -> Preview:
        """Returns the shares of groups before and after a change of one group, which must exist.

        Raises:
            NotFound: the group does not exist.
            InvalidArgument: the weight or a limit is not allowed.
        """
        changed = changed_group(event, known_group(self.state.groups, event.name))
        tree, flow = self.state.flows, self.state.flows.groups[event.name]
        before = entitlements(tree)
        after = entitlements(tree, {flow.id: changed.weight})
        exceeded = tuple(
            name for name, most in sorted(changed.maximum.items()) if used_of(flow, name) > most
        )
        below = tuple(
            name for name, least in sorted(changed.minimum.items()) if used_of(flow, name) < least
        )
        whole = tree.root.rate
        shares = []
        for name, each in sorted(tree.groups.items()):
            old, new = before.get(each.id, 0.0), after.get(each.id, 0.0)
            if name == event.name or old != new:
                now = each.rate / whole if whole else 0.0
                limits = (exceeded, below) if each is flow else ((), ())
                shares.append(SharePreview(name, now, old, new, *limits))
        return Preview(shares=shares)

    def host_policy(self, event: HostPolicySet) -> Preview:
        """Returns the settings that would change on hosts, and the slots with dedicated cpus that
        would be reserved.

        The cost is linear in the number of executors if the event is about the cluster.

        Raises:
            NotFound: the executor is unknown and has no settings.
            InvalidArgument: a setting is not allowed; see `set_host_policy`.
        """
        hosts, configured = self.state.hosts, self.state.settings.cluster_policy
        wanted = checked_policy(hosts, self.state.host_settings, event)
        one = hosts.get(event.executor_id)
        changes: Counter[tuple[str, str, str]] = Counter()
        slots: list[Slot] = []
        executors = 0
        for host in hosts.values() if event.executor_id == CLUSTER else (one,):
            if host is None:
                continue
            before = host.present.policy
            after = policy_after(host, event.executor_id, wanted, configured).policy
            if before == after:
                continue
            executors += 1
            for name in PREVIEWED_SETTINGS:
                old, new = getattr(before, name), getattr(after, name)
                if old != new:
                    changes[name, str(old), str(new)] += 1
            reserved = after.reserved_cpus - before.reserved_cpus
            if reserved:
                slots += [each for each in host.slots.values() if _has_cpus_of(each, reserved)]
        settings = [SettingPreview(*key, count) for key, count in sorted(changes.items())]
        return replace(self._listed(slots), settings=settings, executors=executors)

    def _moved(self, slots: Iterable[Slot], executor_id: str) -> Preview:
        """Lists slots, and seeks another executor for each of the first `SLOTS_MAX` slots.

        The slots are placed tentatively, one scheduling class after the other. So two slots never
        get the same free capacity.
        """
        listed = self._listed(slots)
        classes: defaultdict[SchedulingKey, list[int]] = defaultdict(list)
        for at, each in enumerate(listed.slots):
            request = self.state.requests.named(each.slot.allocation_id)
            if request is not None:
                classes[_key_of(request, each.slot)].append(at)
        members = [
            Members.of(
                number, MemberRequest(key[0], key[1], len(places), cpus=key[2]), (executor_id,)
            )
            for number, (key, places) in enumerate(classes.items())
        ]
        found = list(listed.slots)
        placer = TentativePlacer(self.state.hosts, members)
        try:
            for one, places in zip(members, classes.values(), strict=True):
                left = iter(places)
                count = len(places)
                for host_id in placer.hosts(one):
                    taken = placer.take(one, host_id, count)
                    for _, at in zip(range(taken), left, strict=False):
                        found[at] = replace(found[at], other_executor_id=host_id)
                    count -= taken
                    if not count:
                        break
        finally:
            placer.drop()
        return replace(listed, slots=found, sought=True)

    def _listed(self, slots: Iterable[Slot], *, waiting: int = 0) -> Preview:
        staying = sorted(
            (each for each in slots if each.state is not SlotState.FREEING),
            key=lambda slot: (slot.job_id, slot.allocation_id, slot.generation),
        )
        return Preview(
            slots=[self._slot(each) for each in staying[:SLOTS_MAX]],
            slots_total=len(staying),
            waiting=waiting,
        )

    def _slot(self, slot: Slot) -> SlotPreview:
        job = self.state.jobs[slot.job_id]
        return SlotPreview(slot, job.name, job.group)


def _has_cpus_of(slot: Slot, cpus: CpuSet) -> bool:
    return slot.assignment is not None and bool(slot.assignment.cpus & cpus)


def _key_of(request: Request, slot: Slot) -> SchedulingKey:
    """Returns the scheduling key of a request for the slot in its present size."""
    if request.spec.profile is None:  # the size of a default slot differs between executors
        return scheduling_key(request.spec)
    return scheduling_key(replace(request.spec, profile=slot.profile))
