"""Creates the resource groups of a new cluster, restores groups when the resource manager starts,
and lists the groups above or below a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from resource_manager.engine.fairness.users import ALL_USERS
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Group, Job, JobState

DEFAULT_GROUP = "default"
"""The group of jobs that do not name a group."""

DELIVERED_COUNTER = "groups_delivered"
"""A counter that is 1 after the groups of a new cluster (`DELIVERED`) were created. Administrators
can delete these groups, so the groups (except the default group) are not created again.
"""

DELIVERED = (
    (DEFAULT_GROUP, 1.0, "Priority 10 (Default)"),
    ("low", 1.0, "Priority 10 (Low)"),
    ("medium", 4.0, "Priority 20 (Medium)"),
    ("high", 16.0, "Priority 30 (High)"),
    ("critical", 64.0, "Priority 40 (Critical)"),
)
"""The name, weight and description of each group of a new cluster. Only the default group admits
all users.
"""


def adopt_groups(
    stored: Iterable[Group],
    jobs: Iterable[Job],
    counters: Mapping[str, int],
    changes: ChangeTracker,
    *,
    time_ms: int,
) -> dict[str, Group]:
    """Returns all groups by name, when the resource manager starts. A parent comes before its
    children.

    The groups of a new cluster (`DELIVERED`) are created once, at the first start. The default
    group is created whenever it is missing. The group of a live job can be missing in the store,
    because earlier versions stored only names of groups. Such a missing group is created at the top
    level, with weight 1. A new group admits the owners of the live jobs in it. New groups are added
    to `changes`.

    Args:
        stored: the groups in the store.
        jobs: all jobs. Only live jobs need a group.
        counters: the counters in the store.
        changes: the object that receives the rows that the next batch stores.
        time_ms: the current wall clock time.
    """
    groups = {group.name: group for group in stored}
    live = [job for job in jobs if is_live(job)]
    owners: dict[str, set[str]] = {DEFAULT_GROUP: {ALL_USERS}}
    for job in live:
        # The owners of jobs of earlier versions are not known.
        owners.setdefault(job.group, set()).add(job.owner or ALL_USERS)

    def make(name: str, weight: float = 1.0, description: str = "") -> None:
        if name not in groups:
            group = Group(
                name,
                weight=weight,
                description=description,
                create_time_ms=time_ms,
                users=tuple(sorted(owners.get(name, ()))),
            )
            groups[name] = group
            changes.group(group)

    delivered = bool(counters.get(DELIVERED_COUNTER))
    # Administrators can delete delivered groups, so these groups are created only once. Only the
    # default group must always exist.
    for name, weight, description in DELIVERED[:1] if delivered else DELIVERED:
        make(name, weight, description)
    if not delivered:
        changes.counter(DELIVERED_COUNTER, 1)
    for job in live:
        make(job.group)
    for group in groups.values():
        # A group that has children cannot be deleted. So a missing parent means that the stored
        # data is incomplete. The group then moves to the top level.
        if group.parent and group.parent not in groups:
            group.parent = ""
            changes.group(group)
    return {group.name: group for group in in_order(groups)}


def is_live(job: Job) -> bool:
    """Returns True if a job is active, or still has live requests or slots."""
    return job.state is JobState.ACTIVE or bool(job.live_requests) or bool(job.slot_keys)


def in_order(groups: Mapping[str, Group]) -> list[Group]:
    """Returns all groups. A group comes before its children, and siblings are sorted by name."""
    parts: dict[str, list[Group]] = {}
    # The groups are sorted in reverse, because `pop` takes the last group first.
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
    """Yields the group and the groups that contain it, beginning with the group itself."""
    group = groups.get(name)
    while group is not None:
        yield group
        group = groups.get(group.parent)


def below(groups: Mapping[str, Group], name: str) -> set[str]:
    """Returns the names of the group and of all groups in it, at any depth."""
    parts: dict[str, list[str]] = {}
    for group in groups.values():
        parts.setdefault(group.parent, []).append(group.name)
    found, left = set(), [name]
    while left:
        each = left.pop()
        found.add(each)
        left += parts.get(each, [])
    return found
