"""Chooses the group of a job that names no group, and changes the rules for this choice.

A rule belongs to the group that it chooses, and is stored with this group. The rules of all groups
have one common order, and the first rule that matches decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from finegrain.errors import AlreadyExists, InvalidArgument, NotFound, Reason, ResourceExhausted
from finegrain.values.group_rules import GroupRule
from resource_manager.engine.fairness.groups import DEFAULT_GROUP
from resource_manager.engine.jobs.groups import known_group
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Group
from resource_manager.engine.model.events import GroupRulesChanged, JobRegistered

RULES_MAX = 1_000
"""The largest number of rules in all groups together. Each registration compares the job with all
rules.
"""

ORDER_MAX = 1_000_000
ORDER_STEP = 10
"""A rule that is added without an order gets the order of the last rule plus this number. So other
rules fit between the two rules.
"""


def group_of(groups: dict[str, Group], event: JobRegistered) -> str:
    """Returns the group of a new job: the group that the job names, or the group that the rules
    choose.
    """
    if event.group:
        return event.group
    rules = ((rule, name) for name, group in groups.items() for rule in group.rules)
    matching = (each for each in rules if _matches(each[0], event))
    first = min(matching, key=lambda each: each[0].order, default=None)
    return first[1] if first is not None else DEFAULT_GROUP


def _matches(rule: GroupRule, event: JobRegistered) -> bool:
    labels = dict(event.labels)
    return (
        (not rule.job or fnmatchcase(event.name, rule.job))
        and (not rule.user or fnmatchcase(event.owner, rule.user))
        and all(key in labels and fnmatchcase(labels[key], pattern) for key, pattern in rule.labels)
    )


def change_group_rules(
    groups: dict[str, Group], changes: ChangeTracker, journal: Journal, event: GroupRulesChanged
) -> Group:
    """Adds and removes rules of a group. A rule that the group has already is not added again.

    Args:
        groups: all groups.
        changes: the object that receives the row to store.
        journal: the object that receives the cluster event.
        event: the change.

    Raises:
        NotFound: no group has this name, or the group has no rule with an order that should be
            removed.
        InvalidArgument: a rule has no pattern, or its order is not allowed.
        AlreadyExists: another rule already has the order.
        ResourceExhausted: the groups would have too many rules.
    """
    group = known_group(groups, event.name)
    kept = {rule.order: rule for rule in group.rules}
    for order in event.remove:
        if kept.pop(order, None) is None:
            raise NotFound(
                f"group {group.name} has no rule {order}; its rules are"
                f" {', '.join(map(str, sorted(kept))) or 'none'}",
                reason=Reason.GROUP_UNKNOWN,
                details={"group": group.name, "order": order},
            )
    taken = {
        rule.order: name
        for name, each in groups.items()
        for rule in (each.rules if name != group.name else kept.values())
    }
    for rule in event.add:
        kept |= {each.order: each for each in _placed(rule, kept.values(), taken)}
    if len(taken) > RULES_MAX:
        raise ResourceExhausted(
            f"the groups would have {len(taken)} rules, but at most {RULES_MAX} are allowed;"
            " remove some first",
            details={"rules": len(taken), "rules_max": RULES_MAX},
        )
    rules = tuple(kept[order] for order in sorted(kept))
    if rules == group.rules:
        return group
    changed = replace(group, rules=rules)
    groups[group.name] = changed
    changes.group(changed)
    journal.cluster_event(
        "group_rules_changed", message=f"{group.name}: {len(rules)} rules choose this group"
    )
    return changed


def _placed(
    rule: GroupRule, kept: Iterable[GroupRule], taken: dict[int, str]
) -> Iterable[GroupRule]:
    """Returns a new rule with its order. Returns an empty result if the group already has an equal
    rule.
    """
    if not (rule.job or rule.user or rule.labels):
        raise InvalidArgument("rule", "no pattern", "a pattern for the job, the user or a label")
    if not 0 <= rule.order <= ORDER_MAX:
        raise InvalidArgument("order", rule.order, f"1 to {ORDER_MAX}, or 0 for the last place")
    # A repeated call changes nothing.
    for each in kept:
        if rule in (each, replace(each, order=0)):
            return ()
    order = rule.order or min(ORDER_MAX, max(taken, default=0) + ORDER_STEP)
    if order in taken:
        raise AlreadyExists(
            f"group {taken[order]} has a rule with the order {order}; choose another order, or"
            " remove that rule first"
        )
    taken[order] = ""
    return (replace(rule, order=order),)
