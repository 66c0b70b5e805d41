"""The calls of job masters and administrators to the engine, one method per call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from finegrain.cpu_policy import PLAIN, CpuPolicy, HostPolicy, QosClass
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.group_rules import GroupRule
from finegrain.values.outcomes import ItemOutcome, ThreadReport
from finegrain.values.states import GangPlacement, JobOutcome, ThreadEnd
from resource_manager.engine.model.entities import (
    Executor,
    GangSpec,
    Group,
    HostSetting,
    Job,
    RangeSpec,
    RequestSpec,
    Slot,
)
from resource_manager.engine.model.events import (
    DrainRequested,
    ForgetRequested,
    GroupDeleted,
    GroupRulesChanged,
    GroupSet,
    GroupUsersChanged,
    HostPolicySet,
    JobEndRequested,
    JobKeptAlive,
    JobRegistered,
    Members,
    RequestsCancelled,
    RequestsSubmitted,
    ResizeRequested,
    SlotsReleased,
    SlotsReuseRequested,
    UndrainRequested,
)
from tests.support.engine_cluster.conversation import Conversation

JOB = "job"
"""The job of calls that do not name one."""

SLOT_MEMORY_BYTES = 64 * MIB

LSR = CpuPolicy(QosClass.LSR)
LSE = CpuPolicy(QosClass.LSE)
BE = CpuPolicy(QosClass.BE)


class Calls(Conversation):
    """The calls, each followed by `settle` if the cluster settles by itself."""

    # Job masters.

    def job(
        self,
        *names: str,
        group: str = "default",
        lease_ms: int | None = None,
        depends_on: tuple[JobDependency, ...] = (),
        labels: tuple[tuple[str, str], ...] = (),
        owner: str = "operator/ann",
        priority: int = 0,
    ) -> None:
        """Registers jobs. A job without a lease needs no keep-alive calls."""
        for name in names or (JOB,):
            event = JobRegistered(
                self.at, name, name, group, lease_ms, owner, "r", depends_on, labels, priority
            )
            self.apply(event)

    def keep_alive(self, job: str = JOB, acknowledged_sequence: int = 0) -> Job:
        kept: Job = self.apply(JobKeptAlive(self.at, job, acknowledged_sequence))
        return kept

    def end_job(
        self, job: str = JOB, reason: str = "ENDED", outcome: str = JobOutcome.SUCCEEDED
    ) -> None:
        self.apply(JobEndRequested(self.at, job, reason, outcome=JobOutcome(outcome)))

    def submit(
        self,
        *wanted: str | RequestSpec | GangSpec | RangeSpec,
        job: str = JOB,
        cpu_milli: int = 1_000,
        memory_bytes: int = SLOT_MEMORY_BYTES,
        policy: CpuPolicy = PLAIN,
        **fields: Any,
    ) -> list[ItemOutcome]:
        """Submits requests in one call.

        Args:
            wanted: complete specifications, or names of requests described by the other arguments.
            job: the job that submits.
            cpu_milli: cpu of each named request.
            memory_bytes: memory of each named request.
            policy: cpu policy of each named request.
            fields: further fields of `RequestSpec`; `profile` replaces the amounts.

        Returns:
            One outcome for each request, then for each range.
        """
        profile = ResourceProfile(cpu_milli, memory_bytes)
        described: dict[str, Any] = {"profile": profile, "cpu_policy": policy} | fields
        requests = [
            RequestSpec(each, **described) if isinstance(each, str) else each for each in wanted
        ]
        answer: list[ItemOutcome] = self.apply(self.submission(*requests, job=job))
        return answer

    def submission(
        self, *wanted: RequestSpec | GangSpec | RangeSpec, job: str = JOB
    ) -> RequestsSubmitted:
        """Returns the event of a call that submits requests."""
        return RequestsSubmitted(
            self.at,
            job,
            tuple(each for each in wanted if isinstance(each, RequestSpec)),
            gangs=tuple(each for each in wanted if isinstance(each, GangSpec)),
            ranges=tuple(each for each in wanted if isinstance(each, RangeSpec)),
        )

    def submit_gang(
        self,
        gang_id: str,
        sizes: Sequence[int],
        placement: GangPlacement = GangPlacement.ANYWHERE,
        label: str = "",
        *,
        job: str = JOB,
        memory_bytes: int = SLOT_MEMORY_BYTES,
        policy: CpuPolicy = PLAIN,
        **fields: Any,
    ) -> list[ItemOutcome]:
        """Submits a gang with members `<gang_id>-0`, `<gang_id>-1` and so on.

        Args:
            gang_id: id of the gang.
            sizes: cpu of each member, in thousandths.
            placement: the rule for the executors of the members.
            label: with SAME_LABEL: the label that their hosts must have in common.
            job: the job that submits.
            memory_bytes: memory of each member.
            policy: cpu policy of each member.
            fields: further fields of `RequestSpec` for each member.

        Returns:
            One outcome for each member.
        """
        members = [
            RequestSpec(
                f"{gang_id}-{number}",
                ResourceProfile(cpu_milli, memory_bytes),
                gang_id=gang_id,
                cpu_policy=policy,
                **fields,
            )
            for number, cpu_milli in enumerate(sizes)
        ]
        return self.submit(*members, GangSpec(gang_id, placement, label), job=job)

    def submit_range(
        self,
        range_id: str,
        count: int,
        first_index: int = 0,
        *,
        job: str = JOB,
        cpu_milli: int = 1_000,
        memory_bytes: int = SLOT_MEMORY_BYTES,
        **fields: Any,
    ) -> ItemOutcome:
        """Submits many equal requests as a range.

        Args:
            range_id: id of the range.
            count: number of members.
            first_index: index of the first member.
            job: the job that submits.
            cpu_milli: cpu of each member.
            memory_bytes: memory of each member.
            fields: further fields of `RequestSpec` for each member.
        """
        spec = RequestSpec(range_id, ResourceProfile(cpu_milli, memory_bytes), **fields)
        (outcome,) = self.submit(RangeSpec(spec, first_index, count), job=job)
        return outcome

    def cancel(
        self, *names: str, ranges: Sequence[Members] = (), job: str | None = JOB
    ) -> list[ItemOutcome]:
        """Cancels requests and members of ranges; with `job=None` as an administrator."""
        event = RequestsCancelled(self.at, job, names, ranges=tuple(ranges))
        answer: list[ItemOutcome] = self.apply(event)
        return answer

    def release(
        self,
        *names: str,
        generation: int = 0,
        ranges: Sequence[Members] = (),
        job: str | None = JOB,
        thread_end: ThreadEnd | None = None,
    ) -> list[ItemOutcome]:
        """Releases slots.

        Args:
            names: allocation ids.
            generation: generation of all these slots; 0: the current generation of each slot.
            ranges: members of ranges.
            job: the job that releases the slots; None: an administrator releases them.
            thread_end: what the job master reports about the threads of work in the slots.
        """
        slots = tuple((name, generation) for name in names)
        reports = dict.fromkeys(names, ThreadReport(thread_end))
        event = SlotsReleased(self.at, job, slots, ranges=tuple(ranges), thread_reports=reports)
        answer: list[ItemOutcome] = self.apply(event)
        return answer

    def reuse(
        self,
        *slots: tuple[str, str] | tuple[str, int, str],
        job: str = JOB,
        ranges: tuple[RangeSpec, ...] = (),
    ) -> list[ItemOutcome]:
        """Asks to reuse slots for other requests of the job.

        Args:
            slots: for each slot: its allocation id, its generation (default: the current
                generation), and the allocation id of the request.
            job: the job that owns the slots.
            ranges: ranges that the same call submits.
        """
        named = tuple(
            each if len(each) == 3 else (each[0], self.state.requests[each[0]].generation, each[1])
            for each in slots
        )
        event = SlotsReuseRequested(self.at, job, named, ranges=ranges)
        answer: list[ItemOutcome] = self.apply(event)
        return answer

    def resize(
        self,
        name: str,
        profile: ResourceProfile,
        *,
        job: str | None = JOB,
        generation: int = 0,
        number: int = 0,
        **more: Any,
    ) -> Slot:
        """Requests a resize of a slot.

        Args:
            name: allocation id.
            profile: the new size.
            job: the job that owns the slot; None: an administrator asks.
            generation: generation of the slot; 0: the current generation.
            number: number of the resize; 0: the next number.
            more: further fields of `ResizeRequested`.
        """
        event = ResizeRequested(self.at, job, name, generation, number, profile, **more)
        slot: Slot = self.apply(event)
        return slot

    # Administrators.

    def drain(
        self, executor_id: str, deadline_ms: int | None = None, reason: str = "for a test"
    ) -> Executor:
        drained: Executor = self.apply(DrainRequested(self.at, executor_id, reason, deadline_ms))
        return drained

    def undrain(self, executor_id: str) -> None:
        self.apply(UndrainRequested(self.at, executor_id))

    def forget(self, executor_id: str) -> None:
        self.apply(ForgetRequested(self.at, executor_id))

    def set_group(self, name: str, **fields: Any) -> Group:
        group: Group = self.apply(GroupSet(self.at, name, **fields))
        return group

    def delete_group(self, name: str) -> None:
        self.apply(GroupDeleted(self.at, name))

    def change_group_rules(
        self, name: str, *, add: tuple[GroupRule, ...] = (), remove: tuple[int, ...] = ()
    ) -> Group:
        """Changes the rules of a group, as an administrator does."""
        group: Group = self.apply(GroupRulesChanged(self.at, name, add, remove))
        return group

    def change_group_users(
        self, name: str, *, allow: tuple[str, ...] = (), revoke: tuple[str, ...] = ()
    ) -> Group:
        """Changes who may use a group, in the same way as an administrator."""
        group: Group = self.apply(GroupUsersChanged(self.at, name, allow, revoke))
        return group

    def set_host_policy(
        self, executor_id: str, *clear: str, policy: HostPolicy | None = None, **fields: Any
    ) -> HostSetting:
        """Sets fields of a host's policy.

        Args:
            executor_id: the host; empty: the whole cluster.
            clear: fields to unset at this level.
            policy: the complete policy, or None to use `fields`.
            fields: fields of `HostPolicy` by name.
        """
        event = HostPolicySet(self.at, executor_id, policy or HostPolicy(**fields), clear)
        setting: HostSetting = self.apply(event)
        return setting
