"""The tree of resource groups as the books hold it: which there are at first, who is part of whom.

Decides which groups are delivered and which ones a restart makes for the jobs that it finds.
Refuses to know why groups change (`jobs/groups.py`) and who is served first (`choice.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Group, Job, JobState

DEFAULT_GROUP = "default"
"""The group of jobs that name none."""

DELIVERED_COUNTER = "groups_delivered"
"""Counter that tells whether the delivered groups were made; operators may have struck them."""

DELIVERED = (
    (DEFAULT_GROUP, 1.0, "Priority 10 (Default)"),
    ("low", 1.0, "Priority 10 (Low)"),
    ("medium", 4.0, "Priority 20 (Medium)"),
    ("high", 16.0, "Priority 30 (High)"),
    ("critical", 64.0, "Priority 40 (Critical)"),
)
"""Name, weight and description of the groups that every cluster begins with."""


def adopt_groups(
    stored: Iterable[Group],
    jobs: Iterable[Job],
    counters: Mapping[str, int],
    changes: ChangeTracker,
    *,
    time_ms: int,
) -> dict[str, Group]:
    """The groups of books that are read, by name, parents before their parts.

    The delivered groups are made if they never were, and the default group whenever it is missing.
    Groups that jobs live in and that are not stored are made at the top, with weight 1: books of
    earlier versions know no groups, only names. What is made is noted in `changes`.

    Args:
        stored: rows.
        jobs: all of them, with what is theirs; those that have ended and left nothing need none.
        counters: as stored.
        changes: what the next batch stores.
        time_ms: now, by the wall clock.
    """
    groups = {group.name: group for group in stored}

    def make(name: str, weight: float = 1.0, description: str = "") -> None:
        if name not in groups:
            group = Group(name, weight=weight, description=description, create_time_ms=time_ms)
            groups[name] = group
            changes.group(group)

    delivered = bool(counters.get(DELIVERED_COUNTER))
    for name, weight, description in DELIVERED[:1] if delivered else DELIVERED:
        make(name, weight, description)
    if not delivered:
        changes.counter(DELIVERED_COUNTER, 1)
    for job in jobs:
        if is_live(job):
            make(job.group)
    for group in groups.values():
        if group.parent and group.parent not in groups:  # struck by other means
            group.parent = ""
            changes.group(group)
    return {group.name: group for group in in_order(groups)}


def is_live(job: Job) -> bool:
    """True if anything of a job waits or runs, or may yet do so."""
    return job.state is JobState.ACTIVE or bool(job.live_requests) or bool(job.slot_keys)


def in_order(groups: Mapping[str, Group]) -> list[Group]:
    """All groups: parents before their parts, by name among siblings, a part behind its parent."""
    parts: dict[str, list[Group]] = {}
    for group in sorted(groups.values(), key=lambda group: group.name, reverse=True):
        parts.setdefault(group.parent, []).append(group)
    found: list[Group] = []
    left = parts.get("", [])
    while left:
        group = left.pop()
        found.append(group)
        left += parts.get(group.name, [])
    return found


def above(groups: Mapping[str, Group], name: str) -> Iterator[Group]:
    """The group and those that it is part of, from the inside out."""
    group = groups.get(name)
    while group is not None:
        yield group
        group = groups.get(group.parent)


def below(groups: Mapping[str, Group], name: str) -> set[str]:
    """Names of the group and of all its parts, at any depth."""
    parts: dict[str, list[str]] = {}
    for group in groups.values():
        parts.setdefault(group.parent, []).append(group.name)
    found, left = set(), [name]
    while left:
        each = left.pop()
        found.add(each)
        left += parts.get(each, [])
    return found
