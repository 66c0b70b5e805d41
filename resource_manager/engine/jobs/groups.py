"""Creates, changes and deletes resource groups at an administrator's request, and checks which
changes are allowed.

The fairness tree is in `fairness/`, quota checks are in `lifecycle/quota_checks.py`, and functions
that list the groups above or below a group are in `fairness/groups.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from finegrain.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Reason,
    ResourceExhausted,
)
from finegrain.resources import Amounts
from finegrain.texts import check_text
from finegrain.values.bounds import AMOUNT_MAX
from resource_manager.engine.fairness.flows import GROUP
from resource_manager.engine.fairness.groups import DEFAULT_GROUP, above, below, is_live
from resource_manager.engine.fairness.quotas import unlimited_dimension
from resource_manager.engine.model.entities import Group, Job
from resource_manager.engine.model.events import GroupDeleted, GroupSet
from resource_manager.engine.model.texts import amounts_text
from resource_manager.engine.state import State

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")

WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000_000.0

DESCRIPTION_LENGTH_MAX = 500

GROUPS_MAX = 10_000

DEPTH_MAX = 16
"""The largest number of levels of groups. The choice of the next request takes one step per level.
"""

_NAMED_MAX = 20
"""The error about an unknown group names at most this many existing groups."""


def known_group(groups: dict[str, Group], name: str) -> Group:
    """Returns the group.

    Raises:
        NotFound: no group has this name.
    """
    group = groups.get(name)
    if group is None:
        names = sorted(groups)
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        raise NotFound(
            f"there is no resource group {name!r}; the groups are {', '.join(names[:_NAMED_MAX])}"
            f"{more}; an administrator can create it with finegrain groups set {name}",
            reason=Reason.GROUP_UNKNOWN,
            details={"group": name},
        )
    return group


def set_group(state: State, event: GroupSet) -> Group:
    """Creates a group, or changes the given fields of an existing group.

    Raises:
        InvalidArgument: the name, the weight, a limit or a text is invalid; the minimum is above
            the maximum; the parent is the group itself or below the group; or there would be too
            many levels.
        NotFound: the parent does not exist.
        FailedPrecondition: the parent would change, but the group has live jobs.
        ResourceExhausted: the maximum number of groups is reached.
    """
    known = state.groups.get(event.name)
    if known is None:
        _check_new(state.groups, event.name)
    # All checks come first, because a rejected event must not change the state.
    before = known or Group(event.name, create_time_ms=state.journal.at.time_ms)
    wanted = changed_group(event, before)
    # The parent is checked only if the event changes the parent, because the existing tree is
    # within the limits.
    if known is None or wanted.parent != known.parent:
        _check_parent(state.groups, wanted)
        # The usage of live jobs is part of the usage of all groups above them, and cannot be moved
        # from the old parent to the new parent.
        if (
            known is not None
            and (job := _live_job_in(state.jobs, state.groups, known.name)) is not None
        ):
            raise _in_use(
                known,
                f"the parent of group {known.name} cannot change while {_lives(job)};"
                " create another group for later jobs",
            )
    if wanted != known:  # a repeated call stores no row
        state.groups[wanted.name] = wanted
        state.flows.put_group(
            wanted.name,
            wanted.parent,
            weight=wanted.weight,
            limits=(wanted.maximum, wanted.minimum),
        )
        state.changes.group(wanted)
        state.journal.cluster_event("group_set", message=_described(wanted))
    return wanted


def delete_group(state: State, event: GroupDeleted) -> None:
    """Deletes a group without live jobs.

    Raises:
        NotFound: no group has this name.
        FailedPrecondition: the group is "default", or has live jobs, or is the parent of other
            groups.
    """
    group = known_group(state.groups, event.name)
    why = ""
    if group.name == DEFAULT_GROUP:
        why = "it has all jobs that name no group; give it less weight, or a maximum, instead"
    elif parts := below(state.groups, group.name) - {group.name}:
        first = min(parts)
        why = f"group {first} is part of it; delete {first} first, or give {first} another parent"
    elif (job := _live_job_in(state.jobs, state.groups, group.name)) is not None:
        why = f"{_lives(job)}; end its jobs first"
    if why:
        raise _in_use(group, f"group {group.name} cannot be deleted: {why}")
    del state.groups[group.name]
    state.flows.remove_group(group.name)
    state.changes.delete_group(group)
    # A new group of this name must not inherit the usage of the old group.
    state.changes.delete_usage(GROUP + group.name)
    state.journal.cluster_event("group_deleted", message=group.name)


def _check_new(groups: dict[str, Group], name: str) -> None:
    if not NAME_PATTERN.fullmatch(name):
        expected = "1 to 63 characters out of a-z 0-9 . _ - that start with a letter or digit"
        raise InvalidArgument("name", name, expected)
    if len(groups) >= GROUPS_MAX:
        raise ResourceExhausted(
            f"there are {len(groups)} resource groups, but at most {GROUPS_MAX} are allowed; delete"
            " some first",
            details={"groups": len(groups), "groups_max": GROUPS_MAX},
        )


def changed_group(event: GroupSet, group: Group) -> Group:
    """Returns the group with the changes of the event, field by field.

    Raises:
        InvalidArgument: the weight, a limit or the description is not allowed.
    """
    weight = group.weight if event.weight is None else event.weight
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX:  # this comparison rejects NaN, too
        raise InvalidArgument("weight", weight, f"{WEIGHT_MIN} to {WEIGHT_MAX:,.0f}")
    description = group.description
    if event.description is not None:
        description = check_text(
            "description", event.description, longest=DESCRIPTION_LENGTH_MAX, empty_ok=True
        )
    # A minimum of 0 guarantees nothing, so a minimum of 0 is not stored. A maximum of 0 admits
    # nothing.
    minimum = changed_limits("minimum", group.minimum, event.minimum)
    changed = replace(
        group,
        weight=float(weight),
        parent=group.parent if event.parent is None else event.parent,
        description=description,
        minimum={name: amount for name, amount in minimum.items() if amount},
        maximum=changed_limits("maximum", group.maximum, event.maximum),
    )
    _check_minimum(changed)
    return changed


def changed_limits(
    field: str, amounts: Amounts, changes: Mapping[str, int | None], *also: str
) -> dict[str, int]:
    """Returns the limits after the changes: an amount sets the limit of a dimension, and None
    removes the limit.

    Args:
        field: the name of the field, for errors.
        amounts: the present limits.
        changes: the changes.
        also: names of limits that are allowed in addition to the dimensions of quotas.

    Raises:
        InvalidArgument: a dimension or an amount is not valid.
    """
    if wrong := unlimited_dimension(each for each in changes if each not in also):
        expected = (
            f"{''.join(f'{each}, ' for each in also)}slots, cpu_milli, best_effort_cpu_milli,"
            " memory_bytes, or extended. and the name of a countable resource"
        )
        raise InvalidArgument(f"{field} of a dimension", wrong, expected)
    found = dict(amounts)
    for name, amount in changes.items():
        if amount is None:
            found.pop(name, None)
        elif 0 <= amount <= AMOUNT_MAX:
            found[name] = amount
        else:
            raise InvalidArgument(f"{field}.{name}", amount, f"an amount from 0 to {AMOUNT_MAX}")
    # The limits are sorted, so that equal limits give equal rows and listings.
    return dict(sorted(found.items()))


def _check_minimum(group: Group) -> None:
    for name, least in group.minimum.items():
        most = group.maximum.get(name)
        if most is not None and least > most:
            expected = f"at most the maximum of the group, {most}"
            raise InvalidArgument(f"minimum.{name}", least, expected)


def _check_parent(groups: dict[str, Group], group: Group) -> None:
    if not group.parent:
        return
    known_group(groups, group.parent)
    levels = [each.name for each in above(groups, group.parent)]
    # A group cannot be its own parent, directly or indirectly.
    if group.name in levels:
        expected = f"a group that is neither {group.name} nor part of it"
        raise InvalidArgument("parent", group.parent, expected)
    # If the parent of a group changes, all levels below the group get the new parent, too.
    if len(levels) + _height(groups, group.name) > DEPTH_MAX:
        expected = f"a group with which there are at most {DEPTH_MAX} levels"
        raise InvalidArgument("parent", group.parent, expected)


def _height(groups: dict[str, Group], name: str) -> int:
    """Returns the number of levels in a group's subtree. The result is 1 if the group has no
    children or does not exist yet.
    """
    own = sum(1 for _ in above(groups, name))
    return max(1, *(1 + sum(1 for _ in above(groups, each)) - own for each in below(groups, name)))


def _live_job_in(jobs: dict[str, Job], groups: dict[str, Group], name: str) -> Job | None:
    """Returns a live job of the group or of a group below it. Returns None if there is no
    live job.
    """
    names = below(groups, name)
    # All jobs are scanned, because groups change rarely, and an index would need work for every
    # job.
    return next((job for job in jobs.values() if job.group in names and is_live(job)), None)


def _lives(job: Job) -> str:
    return f"job {job.job_id} ({job.name}) in group {job.group} is live"


def _in_use(group: Group, message: str) -> FailedPrecondition:
    return FailedPrecondition(message, reason=Reason.GROUP_IN_USE, details={"group": group.name})


def _described(group: Group) -> str:
    """Formats a group for people."""
    parts = [f"{group.name}: weight {group.weight:.10g}"]
    parts += [f"part of {group.parent}"] if group.parent else []
    parts += [f"minimum {amounts_text(group.minimum)}"] if group.minimum else []
    parts += [f"maximum {amounts_text(group.maximum)}"] if group.maximum else []
    return ", ".join(parts)
