"""The content of a log, independent of its format: jobs with size, times and owner.

This module also adapts a log to a simulated cluster. `picked` selects jobs, `group_of` maps owners
to resource groups, and `fitted` drops resources that the given nodes do not have.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from finegrain.errors import InvalidArgument
from finegrain.resources import (
    CPU_MILLI,
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    ResourceProfile,
)
from resource_manager.simulator.nodes import Labels, Node

PARTS_MAX = 1_000_000
"""Limit of parts per job. More parts are a mistake in the log, and would use up all memory."""

ARRIVALS_MS_MAX = 36_500 * 24 * 3_600_000
"""Limit of the time from the first arrival to the last.

The limit must stay below the timeout of the simulated executors, which send no heartbeats.
"""

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_NAME_LENGTH_MAX = 63


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a log. A job has `count` equal parts with this profile, which start together.

    Times are in milliseconds; `submit_ms` counts from the origin of the log. `owners` has the job's
    owner by key (user, group, queue, ...).
    """

    name: str
    submit_ms: int
    run_ms: int
    count: int
    profile: ResourceProfile
    owners: Mapping[str, str] = field(default_factory=dict)
    labels: Labels = ()
    whole_nodes: bool = False  # each part gets all cpus of its node
    waited_ms: int | None = None  # wait on the original cluster; None: not recorded
    requested_ms: int | None = None  # run time that its user expected; None: not recorded


RUN_TIMES = ("log", "none", "scaled")
"""Sources of expected run times. `log` means the requested times in the log, and `none` means that
there are no expected run times. `scaled` means the real run time of each job, multiplied by a
factor from 1 to 5 for the job's user.
"""

SCALE_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs of a log in order of arrival.

    `left_out` counts the records that are not replayed, by reason. `notes` lists aspects of the log
    that are not modeled.
    """

    name: str
    format: str
    jobs: tuple[TraceJob, ...]
    owner_keys: tuple[str, ...] = ()  # the keys of `owners`; the first key is the default
    nodes: str = ""  # the cluster of the log, if the log names it
    left_out: Mapping[str, int] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()

    def picked(
        self,
        *,
        limit: int | None = None,
        from_ms: int = 0,
        until_ms: int | None = None,
        speedup: float = 1.0,
    ) -> Workload:
        """Returns the jobs that arrive in an interval.

        The first of these jobs arrives at 0, and all arrive `speedup` times as fast as in the log.

        Args:
            limit: maximum number of jobs; None: all.
            from_ms: begin of the interval, counted from the log's first job.
            until_ms: end of the interval, exclusive; None: the end of the log.
            speedup: factor by which arrivals are compressed.

        Raises:
            InvalidArgument: no job is left, a job has too many parts, or the last job arrives too
                late.
        """
        first = min((job.submit_ms for job in self.jobs), default=0)
        # Logs need not be in order. Jobs with equal times keep the order of the log.
        chosen = sorted(
            (
                job
                for job in self.jobs
                if from_ms <= job.submit_ms - first
                and (until_ms is None or job.submit_ms - first < until_ms)
            ),
            key=lambda job: job.submit_ms,
        )[:limit]
        if not chosen:
            raise InvalidArgument("FILE", self.name, "a log with jobs in the requested interval")
        start = chosen[0].submit_ms
        if (chosen[-1].submit_ms - start) / speedup > ARRIVALS_MS_MAX:
            expected = "a log whose jobs arrive within 100 years (divided by --speedup)"
            raise InvalidArgument("FILE", self.name, expected)
        large = next((job for job in chosen if job.count > PARTS_MAX), None)
        if large is not None:
            field = f"{self.name}, parts of job {large.name}"
            raise InvalidArgument(field, large.count, f"at most {PARTS_MAX}")
        jobs = tuple(
            replace(job, name=name, submit_ms=round((job.submit_ms - start) / speedup))
            for name, job in zip(_unique(job.name for job in chosen), chosen, strict=True)
        )
        return replace(self, jobs=jobs)

    def expecting(self, source: str, seed: int = 0) -> Workload:
        """Returns the same jobs with expected run times from this source (see `RUN_TIMES`).

        Args:
            source: one of `RUN_TIMES`.
            seed: determines the factors of "scaled".
        """
        if source == "log":
            return self
        factors: dict[str, float] = {}

        def expected(job: TraceJob) -> int | None:
            if source == "none":
                return None
            user = job.owners.get("user", "")
            if user not in factors:
                chance = random.Random(f"{seed}/{user}")  # noqa: S311 - not a secret
                factors[user] = chance.uniform(1.0, SCALE_MAX)
            return round(job.run_ms * factors[user])

        jobs = tuple(replace(job, requested_ms=expected(job)) for job in self.jobs)
        return replace(self, jobs=jobs)

    def fitted(self, nodes: Sequence[Node]) -> Workload:
        """Returns the same jobs as requests that these nodes can serve.

        A resource that no node has at all (memory, an extended resource, GPUs) is dropped from all
        requests, with a note.
        """
        # A request for a resource that no node has would be rejected.
        known = {name for node in nodes for name in node.capacity}
        notes = list(self.notes)
        dropped: Counter[str] = Counter()
        jobs = tuple(_fitted(job, nodes, known, dropped) for job in self.jobs)
        for name, count in sorted(dropped.items()):
            notes.append(f"{name} is not modeled: no node has any; {count} jobs request it")
        return replace(self, jobs=jobs, notes=tuple(notes))

    def group_of(self, job: TraceJob, key: str) -> str:
        """Returns the name of a job's resource group: "user-12"; "default" if no owner is recorded.

        Raises:
            InvalidArgument: the log does not record this key.
        """
        if key == "none":
            return "default"
        if key not in self.owner_keys:
            expected = f"one of {', '.join((*self.owner_keys, 'none'))}"
            raise InvalidArgument("--group-by", key, expected)
        owner = job.owners.get(key, "")
        if not owner:
            return "default"
        return _NOT_IN_A_NAME.sub("-", f"{key}-{owner}".lower())[:_NAME_LENGTH_MAX]


def _unique(names: Iterable[str]) -> Iterator[str]:
    """Yields the names. Repeated names get a number: "7", "7#2"."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def _fitted(
    job: TraceJob, nodes: Sequence[Node], known: set[str], dropped: Counter[str]
) -> TraceJob:
    profile = job.profile
    if profile.memory_bytes and MEMORY_BYTES not in known:
        dropped["memory"] += 1
        profile = ResourceProfile(
            profile.cpu_milli, extended=profile.extended, devices=profile.devices
        )
    if profile.devices and not all(
        DEVICE_PREFIX + name in known for each in profile.devices for name, _ in each.amounts
    ):
        dropped.update(each.type for each in profile.devices)
        profile = replace(profile, devices=())
    missing = [name for name, _ in profile.extended if EXTENDED_PREFIX + name not in known]
    if missing:
        dropped.update(missing)
        kept = tuple(pair for pair in profile.extended if pair[0] not in missing)
        profile = replace(profile, extended=kept)
    if job.whole_nodes:
        profile = replace(profile, cpu_milli=_whole(job, nodes))
    return replace(job, profile=profile)


def _whole(job: TraceJob, nodes: Sequence[Node]) -> int:
    """Returns the cpus of the smallest suitable kind of node. If no node is suitable, returns the
    cpus of the job.
    """
    requested = job.profile.cpu_milli
    enough = [
        cpus
        for node in nodes
        if set(job.labels) <= set(node.labels)
        and (cpus := node.total.get(CPU_MILLI, 0)) >= requested
    ]
    # Take the smallest kind. The job then still fits every suitable node.
    return min(enough, default=requested)
