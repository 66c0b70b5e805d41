"""Commands about resource groups: their weights, limits and shares."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import MIB
from finegrain.values.group_rules import GroupRule
from resource_manager.engine.explain.groups import group_views
from tests.scenarios import render
from tests.scenarios.commands import Commands
from tests.scenarios.words import Words

_DIMENSIONS = {"slots": ("slots", 1), "cpu": ("cpu_milli", 1), "mem": ("memory_bytes", MIB)}
_LICENSES = ("extended.license", 1)


class FairnessCommands(Commands):
    """Part of the language; `language.py` joins the parts."""

    def do_group(self, words: Words) -> Iterator[str]:
        """Creates or changes a group; `none` removes a limit."""
        weight = words.values.pop("weight", "")
        self.cluster.set_group(
            words.subjects[0],
            weight=float(weight) if weight else None,
            parent=words.values.pop("parent", None),
            minimum=_limits(words, "min"),
            maximum=_limits(words, "max"),
        )
        yield from self._effects()

    def do_rule(self, words: Words) -> Iterator[str]:
        """Adds or removes a rule of a group, and prints the rules of the group."""
        remove = words.number("remove")
        rule = GroupRule(
            words.number("order"),
            words.values.pop("job", ""),
            words.values.pop("user", ""),
            words.labels(),
        )
        add = () if remove else (rule,)
        removed = (remove,) if remove else ()
        group = self.cluster.change_group_rules(words.subjects[0], add=add, remove=removed)
        for each in group.rules:
            labels = " ".join(f"{key}={value}" for key, value in each.labels)
            yield f"{each.order}: job={each.job} user={each.user} {labels} -> {group.name}"
        yield from self._effects()

    def do_group_delete(self, words: Words) -> Iterator[str]:
        self.cluster.delete_group(words.subjects[0])
        yield from self._effects()

    def do_groups(self, words: Words) -> Iterator[str]:
        """Prints the named groups; without names, the groups that have work."""
        state = self.cluster.state
        state.flows.advance(self.cluster.at.monotonic_ms)
        for view in group_views(state.flows, state.groups, {}):
            busy = view.waiting or view.running
            if view.group.name in words.subjects or (busy and not words.subjects):
                yield render.group(view)


def _limits(words: Words, what: str) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name, (dimension, unit) in {**_DIMENSIONS, "licenses": _LICENSES}.items():
        text = words.values.pop(f"{what}_{name}", "")
        if text:
            found[dimension] = None if text == "none" else int(text) * unit
    return found
