"""A simulated job master: requests slots and gangs, resizes and releases them, or crashes.

This module decides what the job requests. `follower.py` makes the calls. After a restart, the job
master remembers only its name and its secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import FinegrainError, Reason, ResourceExhausted
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.dependencies import JobDependency
from finegrain.values.states import GangPlacement, JobOutcome, RequestState
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    GangSpec,
    JobEvent,
    RangeSpec,
    RequestSpec,
)
from resource_manager.engine.model.events import (
    JobEndRequested,
    JobRegistered,
    RequestsCancelled,
    RequestsSubmitted,
    ResizeRequested,
    SlotsReleased,
)
from task_executor.engine.slots import SlotKey
from tests.simulation.cpu_machines import with_cpus
from tests.simulation.device_machines import with_devices, with_other_shares
from tests.simulation.follower import Follower, names_of
from tests.simulation.group_operator import NAMES
from tests.simulation.job_specs import LABELS, some_dependencies, some_owner, with_times
from tests.simulation.manager import Manager
from tests.simulation.network import Loop, Network, Reply
from tests.simulation.reuses import Reuses
from tests.simulation.sizes import resized

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.slot_host import Troubles

PROFILES = (
    ResourceProfile(1_000, 256 * MIB),
    ResourceProfile(500, 100 * MIB, managed_memory_bytes=30 * MIB + 1),
    ResourceProfile(3_000, 1_024 * MIB),
    ResourceProfile(250, 64 * MIB, extended=(("license", 1),)),
    ResourceProfile(64_000, 256 * MIB),  # larger than every host
)
WEIGHTS = (6, 4, 2, 2, 1)
GANG_SIZES = (1, 2, 2, 2, 3, 3, 4, 8)
WAITING_IN_GANGS_MAX = 6
GANG_WEIGHTS = (4, 10, 1, 2, 0.1)
PLACEMENTS = tuple(GangPlacement)
REGISTRATION_REFUSALS = frozenset(
    {Reason.GROUP_UNKNOWN, Reason.GROUP_NOT_ALLOWED, Reason.JOB_UNKNOWN, Reason.ALREADY_EXISTS}
)
RESIZE_REFUSALS = frozenset(
    {
        Reason.ALLOCATION_UNKNOWN,
        Reason.STALE_GENERATION,
        Reason.STALE_RESIZE,
        Reason.SLOT_NOT_READY,
        Reason.INFEASIBLE_NEVER,
        Reason.INVALID_ARGUMENT,
    }
)
"""Errors that a job master may get for a resize."""

GANGS = "gangs"
RESIZES = "resizes"
RANGES = "ranges"
CPUS = "cpus"  # slots with cpu policies, on hosts with a known topology
DEVICES = "devices"  # slots with GPUs and NICs, on hosts with a known topology
DEVICE_STORM = "device storm"  # devices fail often, and administrators park slots
DEVICE_SHARES = "device shares"  # resizes change the shares of devices, too
FAIR_SHARES = "fair shares"  # several groups with limits, and reuse of slots
TIMES = "times"  # time limits, expected run times and wait timeouts
DEPENDENCIES = "dependencies"  # jobs that wait for jobs
USERS = "users"  # several users with limits, and rules that choose groups
# A name for requests that no executor could host; they are made before the first executor exists.
EARLY = "early requests"
PRIORITIES = "priorities"  # requests and jobs with priorities
REVOCABLE = "revocable"  # revocable slots, and managers that take them back

RELEASES = 0.35
RELEASES_IN_STORM = 0.06
"""How often a job master releases slots. In a storm of devices, they should exist for a while."""

RANGE_COUNTS = (1, 2, 3, 5, 8, 20)
RANGES_WAITING_MAX = 60  # another range is requested only while fewer members wait


class JobMaster(Follower):
    """The master of one job.

    Args:
        wishes: kinds of requests besides single slots, and a function that makes random sources.
        batch_max: most requests in one call.
    """

    def __init__(
        self,
        name: str,
        loop: Loop,
        rng: Random,
        network: Network,
        managers: list[Manager],
        checks: Checks,
        log: Callable[[str], None],
        troubles: Troubles,
        wishes: tuple[frozenset[str], Callable[[str], Random]],
        batch_max: int,
    ) -> None:
        self.unknown = rng.random() < 0.25
        lease_ms = rng.choice((None, 3_000, 6_000, 10_000))
        super().__init__(name, loop, rng, network, managers, checks, log, lease_ms)
        self.troubles, self.batch_max = troubles, batch_max
        self.wishes, chance = wishes
        self.wish_rng, self.range_rng = chance(f"{name}/wishes"), chance(f"{name}/ranges")
        self.cpu_rng, self.device_rng = chance(f"{name}/cpus"), chance(f"{name}/devices")
        self.share_rng = chance(f"{name}/shares")
        self.early_rng = chance(f"{name}/early")
        self.priority_rng = chance(f"{name}/priorities")
        self.priority = self._priority()
        fair_rng = chance(f"{name}/fair shares")
        self.group = fair_rng.choice(NAMES) if FAIR_SHARES in self.wishes else "default"
        self.reuses = Reuses(self, fair_rng)
        self.time_rng, self.job_rng = chance(f"{name}/times"), chance(f"{name}/jobs")
        self.owner, self.labels = "operator/ann", LABELS[0]
        if USERS in self.wishes:
            self.owner, self.labels = some_owner(self.job_rng)
            self.group = "" if self.job_rng.random() < 0.5 else self.group
        self.depends_on: tuple[JobDependency, ...] = ()
        if DEPENDENCIES in self.wishes and self.job_rng.random() < 0.6:
            self.depends_on = some_dependencies(self.job_rng, list(checks.masters))
        # Possible contents of the registration. If one is refused, the next one is used.
        self._contents = list(
            dict.fromkeys(
                (group, after)
                for after in (self.depends_on, ())
                for group in (self.group, "default")
            )
        )
        self._ranges: list[tuple[RequestSpec, int]] = []  # spec of the members, and how many
        self.leaving = False
        self.made = 0
        self._in_gangs: list[str] = []  # requests that may still wait
        self.acknowledged: set[str] = set()

    def start(self) -> None:
        """Registers the job and begins."""
        self.life += 1
        self.up = True
        self._forget()
        if self.life > 1:
            self.sequence = None
        self._register(0)

    def _register(self, attempt: int) -> None:
        group, depends_on = self._contents[attempt % len(self._contents)]

        def expected(error: FinegrainError) -> bool:
            if USERS in self.wishes and isinstance(error, ResourceExhausted):
                self.after(self.job_rng.randint(100, 1_000), lambda: self._register(attempt))
                return True
            # An earlier copy of the call may arrive later, at a time when the group exists again.
            if error.reason in REGISTRATION_REFUSALS and len(self._contents) > 1:
                self.after(1, lambda: self._register(attempt + 1))
                return True
            return False

        self.until_answered(
            lambda at: JobRegistered(
                at,
                self.name,
                self.name,
                group,
                self.lease_ms,
                self.owner,
                "r",
                depends_on,
                self.labels,
                self.priority,
            ),
            self._begin,
            expected,
        )

    def _begin(self, _job: Any) -> None:
        if not self.registered:
            self.registered = True
            self._keep_alive()
            self._watch()
            if EARLY in self.wishes and self.life == 1:
                self._request_early()
            self._act()
            if self.wishes:
                self._wish()
            if RANGES in self.wishes:
                self._deal_with_ranges()
            if FAIR_SHARES in self.wishes:
                self.reuses.begin()
            # Jobs end often, because others wait for their end.
            if DEPENDENCIES in self.wishes:
                self.after(self.job_rng.randint(1_000, 12_000), self.leave)

    def leave(self) -> None:
        """Stops requesting and ends the job."""
        self.leaving = True
        if self.up and not self.over:
            outcome = self.job_rng.choice(tuple(JobOutcome))
            self.until_answered(
                lambda at: JobEndRequested(at, self.name, "ENDED", outcome=outcome),
                lambda _job: self._end("left"),
            )

    def crash(self, *, back_in_ms: int | None) -> None:
        """Crashes, and returns after `back_in_ms`. None: it never returns, so the lease expires."""
        self.log(f"{self.name} {'falls silent' if back_in_ms is None else 'dies'}")
        self.up = False
        if back_in_ms is not None:
            self.loop.after(back_in_ms, self.start)

    def _released(self, event: JobEvent) -> None:
        self.checks.require(self.reuses.ended(event))

    def offered(self, key: SlotKey, reply: Reply) -> None:
        """Answers an executor that offers a slot directly."""
        reply(not self.over and self.rng.random() >= self.troubles.offer_declined)

    # -- slots -----------------------------------------------------------------------------

    def _held(self) -> list[tuple[str, int]]:
        return [
            (name, told.generation)
            for name, told in self.seen.items()
            if told.state is RequestState.GRANTED
        ]

    def _act(self) -> None:
        self.after(self.rng.randint(50, 900), self._act)
        if self.over or self.leaving or self.busy:
            return
        what = self.rng.random()
        held = self._held()
        releases = RELEASES_IN_STORM if DEVICE_STORM in self.wishes else RELEASES
        if what < 0.35 and len(held) < 4 * self.batch_max:
            self._request(tuple(self._spec() for _ in range(self.rng.randint(1, self.batch_max))))
        elif what < 0.35 + releases and held:
            self._release(self.rng.sample(held, self.rng.randint(1, min(4, len(held)))))
        elif 0.7 <= what < 0.8:
            self._cancel()

    def _request(
        self,
        specs: tuple[RequestSpec, ...],
        gangs: tuple[GangSpec, ...] = (),
        ranges: tuple[RangeSpec, ...] = (),
    ) -> None:
        self.busy = True
        self.reuses.specs.update((s.allocation_id, s) for s in specs if not s.gang_id)
        self.reuses.specs.update((each.range_id, each.request) for each in ranges)

        def done(outcomes: Any) -> None:
            self.busy = False
            fine = {outcome.id for outcome in outcomes if not outcome.reason}
            for each in ranges:
                if each.range_id in fine:
                    fine.remove(each.range_id)
                    fine.update(names_of(f"{each.range_id}.{each.first_index}", each.count))
            self.acknowledged |= self.checks.acknowledged(self.name, fine)

        def expected(error: FinegrainError) -> bool:
            # A refused gang has no requests.
            self.busy = not isinstance(error, ResourceExhausted)
            return USERS in self.wishes and not self.busy

        self.until_answered(
            lambda at: RequestsSubmitted(at, self.name, specs, gangs=gangs, ranges=ranges),
            done,
            expected,
        )

    def _spec(self) -> RequestSpec:
        rng = self.rng
        self.made += 1
        spec = RequestSpec(
            f"{self.name}-{self.made}",
            None if self.unknown else rng.choices(PROFILES, WEIGHTS)[0],
            required_labels=(("zone", rng.choice("ab")),) if rng.random() < 0.25 else (),
            target_address="127.0.0.1:99" if rng.random() < 0.2 else "",
            allow_pending=rng.random() < 0.7,
            restart_on_loss=rng.random() < 0.5,
            priority=self._priority(),
            revocable=self._revocable(),
        )
        return self._with_cpus(self._with_times(spec))

    def _with_times(self, spec: RequestSpec) -> RequestSpec:
        return with_times(self.time_rng, spec) if TIMES in self.wishes else spec

    def _revocable(self) -> bool:
        return REVOCABLE in self.wishes and self.priority_rng.random() < 0.6

    def _priority(self) -> int:
        return self.priority_rng.choice((-3, 0, 0, 8)) if PRIORITIES in self.wishes else 0

    def _request_early(self) -> None:
        """Requests something that no executor could host: too large, or with an unknown label."""
        self.made += 1
        large = not self.unknown and self.early_rng.random() < 0.5
        spec = RequestSpec(
            f"{self.name}-{self.made}",
            None if self.unknown else PROFILES[-1 if large else 0],
            required_labels=() if large else (("zone", "nowhere"),),
        )
        self._request((spec,))

    def _with_cpus(self, spec: RequestSpec) -> RequestSpec:
        # In a storm of devices, devices alone decide where slots fit.
        if CPUS in self.wishes and DEVICE_STORM not in self.wishes:
            spec = with_cpus(self.cpu_rng, spec)
        return with_devices(self.device_rng, spec) if DEVICES in self.wishes else spec

    def _release(self, held: list[tuple[str, int]]) -> None:
        slots = [
            # Sometimes release an older generation, which must have no effect.
            (name, max(1, generation - 1) if self.rng.random() < 0.2 else generation)
            for name, generation in held
        ]
        self.given_back.update(slots)
        self.until_answered(
            lambda at: SlotsReleased(at, self.name, tuple(slots)), lambda _outcomes: None
        )

    def _cancel(self) -> None:
        waiting = [
            name
            for name in sorted(self.acknowledged)
            if (told := self.told_of(name)) is not None and told.state not in ENDED_REQUEST_STATES
        ]
        some = tuple(self.rng.sample(waiting, min(3, len(waiting))))
        if some:
            self.given_back.update((name, 0) for name in some)
            self.until_answered(
                lambda at: RequestsCancelled(at, self.name, some), lambda _outcomes: None
            )

    # -- gangs and sizes -------------------------------------------------------------------

    def _wish(self) -> None:
        self.after(self.wish_rng.randint(50, 700), self._wish)
        if self.over or self.leaving or self.busy:
            return
        what = self.wish_rng.random()
        held = self._held()
        if GANGS in self.wishes and what < 0.3 and self._waits_with_few_gangs():
            self._request_gang()
        elif RESIZES in self.wishes and what > 0.5 and held:
            # Several calls; some are made before the last answer.
            for _ in range(self.wish_rng.choice((1, 1, 1, 2, 3))):
                self._resize(*self.wish_rng.choice(held))

    def _waits_with_few_gangs(self) -> bool:
        waiting = [name for name in self._in_gangs if self.waits(name)]
        self._in_gangs = waiting
        return len(waiting) < WAITING_IN_GANGS_MAX

    def _request_gang(self) -> None:
        rng = self.wish_rng
        placement = rng.choice(PLACEMENTS)
        gang = GangSpec(
            f"{self.name}-gang-{self.made}",
            placement,
            "zone" if placement is GangPlacement.SAME_LABEL else "",
            rng.choice((None, None, 1_500, 6_000)),
        )
        restart, pending = rng.random() < 0.5, rng.random() < 0.5
        labels = (("zone", rng.choice("ab")),) if rng.random() < 0.15 else ()
        profiles = rng.choices(PROFILES, GANG_WEIGHTS, k=rng.choice(GANG_SIZES))
        if rng.random() < 0.6:
            profiles = profiles[:1] * len(profiles)
        members: list[RequestSpec] = []
        priority, revocable = self._priority(), self._revocable()
        alike = len(set(profiles)) == 1
        for profile in profiles:
            self.made += 1
            spec = RequestSpec(
                f"{self.name}-{self.made}",
                None if self.unknown else profile,
                required_labels=labels,
                allow_pending=pending,
                restart_on_loss=restart,
                gang_id=gang.gang_id,
                priority=priority,
                revocable=revocable,
            )
            if alike and members:
                spec = replace(members[0], allocation_id=spec.allocation_id)
            else:
                spec = self._with_cpus(replace(self._with_times(spec), wait_timeout_ms=None))
            members.append(spec)
        self._in_gangs += [spec.allocation_id for spec in members]
        self.checks.gangs.asked(self.name, gang, [spec.allocation_id for spec in members])
        self._request(tuple(members), (gang,))

    def _resize(self, name: str, generation: int) -> None:
        """Requests a random size; sometimes for an older generation or with an explicit number."""
        rng, told = self.wish_rng, self.seen[name]
        assert told.slot is not None
        profile, limit_milli = resized(rng, told.slot)
        if DEVICE_SHARES in self.wishes and self.share_rng.random() < 0.5:
            devices = with_other_shares(self.share_rng, profile.devices)
            profile = replace(profile, devices=devices)
        asked = generation if rng.random() < 0.9 else max(1, generation - 1)
        number = told.resize_number + 1 if rng.random() < 0.3 else 0
        wait = rng.random() < 0.5

        def expected(error: FinegrainError) -> bool:
            return error.reason in RESIZE_REFUSALS

        self.until_answered(
            lambda at: ResizeRequested(
                at, self.name, name, asked, number, profile, limit_milli, wait
            ),
            lambda _slot: None,
            expected,
        )

    # -- ranges ----------------------------------------------------------------------------

    def _deal_with_ranges(self) -> None:
        rng = self.range_rng
        self.after(rng.randint(100, 1_200), self._deal_with_ranges)
        if self.over or self.leaving or self.busy:
            return
        what = rng.random()
        if what < 0.4:
            waiting = sum("." in name and self.waits(name) for name in self.acknowledged)
            if waiting < RANGES_WAITING_MAX:
                self._request_range()
        elif what < 0.7 and self._ranges:
            self._give_members_up()

    def _request_range(self) -> None:
        """Requests a new range, more members of one, or (sometimes) an existing range again."""
        rng, first = self.range_rng, 0
        count = rng.choice(RANGE_COUNTS)
        if self._ranges and rng.random() < 0.3:
            at = rng.randrange(len(self._ranges))
            spec, first = self._ranges[at]
            if rng.random() < 0.3:
                first, count = 0, first
            else:
                self._ranges[at] = spec, first + count
        else:
            self.made += 1
            spec = RequestSpec(
                f"{self.name}-{self.made}",
                None if self.unknown else rng.choices(PROFILES, WEIGHTS)[0],
                required_labels=(("zone", rng.choice("ab")),) if rng.random() < 0.25 else (),
                allow_pending=rng.random() < 0.7,
                restart_on_loss=rng.random() < 0.6,
                priority=self._priority(),
                revocable=self._revocable(),
            )
            spec = self._with_cpus(self._with_times(spec))
            self._ranges.append((spec, count))
        self._request((), ranges=(RangeSpec(spec, first, count),))

    def _give_members_up(self) -> None:
        rng = self.range_rng
        spec, count = rng.choice(self._ranges)
        members = spec.allocation_id, rng.randrange(count), rng.randint(1, count)
        self.given_back.update(
            (name, 0) for name in names_of(f"{members[0]}.{members[1]}", members[2] + 1)
        )
        release = rng.random() < 0.5
        self.until_answered(
            lambda at: (
                SlotsReleased(at, self.name, (), ranges=(members,))
                if release
                else RequestsCancelled(at, self.name, (), ranges=(members,))
            ),
            lambda _outcomes: None,
        )
