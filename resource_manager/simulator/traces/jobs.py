"""What a log says, whatever its format: jobs with their size, place in time and owner.

Decides how a log becomes something to run on given nodes: what of it is picked, how owners become
resource groups, and what is left out because these nodes do not have it. Knows no format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from finegrain.errors import InvalidArgument
from finegrain.resources import CPU_MILLI, EXTENDED_PREFIX, MEMORY_BYTES, ResourceProfile
from resource_manager.simulator.nodes import Labels, Node

PARTS_MAX = 1_000_000
"""Of one job: more are a mistake in the log, and would take all memory."""

ARRIVALS_MS_MAX = 36_500 * 24 * 3_600_000
"""From the first to the last: the rules of silent executors allow for no longer a life."""

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_NAME_LENGTH_MAX = 63


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a log: `count` equal parts that start together, each with a profile.

    Times are milliseconds; `submit_ms` counts from whatever the log counts from. `owners` says by
    key (user, group, queue, ...) whose it is.
    """

    name: str
    submit_ms: int
    run_ms: int
    count: int
    profile: ResourceProfile
    owners: Mapping[str, str] = field(default_factory=dict)
    labels: Labels = ()
    whole_nodes: bool = False  # each part has all cpus of its node
    one_of: tuple[str, tuple[str, ...]] = ("", ())  # a label of the node, and values that will do
    waited_ms: int | None = None  # on the cluster of the log, where it was recorded


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs of a log in order of arrival, with what is to be known about them.

    `left_out` counts records that are no jobs to run, by reason; `notes` say what of the log is not
    modelled.
    """

    name: str
    format: str
    jobs: tuple[TraceJob, ...]
    owner_keys: tuple[str, ...] = ()  # the first one is the default
    nodes: str = ""  # the cluster that the log is from, where it says so
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
        """The jobs that arrive in an interval after the first one, at most so many; the first of
        them then arrives at 0, and all come `speedup` times as fast.

        Raises:
            InvalidArgument: none is left, one has too many parts, or the last comes too late.
        """
        first = min((job.submit_ms for job in self.jobs), default=0)
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
            raise InvalidArgument("FILE", self.name, "a log with jobs in the interval asked for")
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

    def fitted(self, nodes: Sequence[Node]) -> tuple[Workload, list[Node]]:
        """The same jobs as they can be asked for on these nodes, and the nodes with the labels that
        are needed for that.

        Of what no node has at all (memory, an extended resource) nothing is asked for, which is
        noted.
        """
        known = {name for node in nodes for name in node.total}
        notes = list(self.notes)
        dropped: Counter[str] = Counter()
        choices = {job.one_of for job in self.jobs if job.one_of[1]}
        jobs = tuple(_fitted(job, nodes, known, dropped) for job in self.jobs)
        for name, count in sorted(dropped.items()):
            notes.append(f"{name} is not modelled: no node has any; {count} jobs asked for it")
        labelled = [replace(node, labels=_with_choices(node, choices)) for node in nodes]
        return replace(self, jobs=jobs, notes=tuple(notes)), labelled

    def group_of(self, job: TraceJob, key: str) -> str:
        """Name of the resource group of a job: "user-12"; "default" where nothing is recorded.

        Raises:
            InvalidArgument: the log does not record such a key.
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
    """The same names, numbered where a log has one several times: "7", "7#2"."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


def _fitted(
    job: TraceJob, nodes: Sequence[Node], known: set[str], dropped: Counter[str]
) -> TraceJob:
    profile, labels = job.profile, dict(job.labels)
    if job.one_of[1]:
        labels[_choice(job.one_of)] = "yes"
    if profile.memory_bytes and MEMORY_BYTES not in known:
        dropped["memory"] += 1
        profile = ResourceProfile(profile.cpu_milli, extended=profile.extended)
    missing = [name for name, _ in profile.extended if EXTENDED_PREFIX + name not in known]
    if missing:
        dropped.update(missing)
        kept = tuple(pair for pair in profile.extended if pair[0] not in missing)
        profile = replace(profile, extended=kept)
    if job.whole_nodes:
        profile = replace(profile, cpu_milli=_whole(job, nodes))
    return replace(job, profile=profile, labels=tuple(sorted(labels.items())))


def _whole(job: TraceJob, nodes: Sequence[Node]) -> int:
    """All cpus of the smallest kind of node that will do; if none will, what the job says."""
    asked = job.profile.cpu_milli
    enough = [
        cpus
        for node in nodes
        if set(job.labels) <= set(node.labels) and (cpus := node.total.get(CPU_MILLI, 0)) >= asked
    ]
    return min(enough, default=asked)


def _choice(one_of: tuple[str, tuple[str, ...]]) -> str:
    return f"{one_of[0]}.{'|'.join(one_of[1])}"


def _with_choices(node: Node, choices: set[tuple[str, tuple[str, ...]]]) -> Labels:
    labels = dict(node.labels)
    for one_of in choices:
        if labels.get(one_of[0]) in one_of[1]:
            labels[_choice(one_of)] = "yes"
    return tuple(sorted(labels.items()))
