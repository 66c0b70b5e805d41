"""Defines rules about the neighbors of a slot: near or apart from other slots of the same job.

A rule selects slots by their labels, which requests give to their slots. The rule also names a
level: slots are near each other if they are on the same host, NUMA node, group of cpus with a
common last-level cache, or core. As text, a rule is "KEY=VALUE[,KEY=VALUE...][@LEVEL][:STRENGTH]",
for example "app=db@numa:preferred". If the text names no level, the level is `host`. If it names no
strength, the strength is `required`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from finegrain.errors import InvalidArgument
from finegrain.mapping.value import Value

RULES_MAX: Final = 4
"""The largest number of rules of one request."""

_STRENGTHS: Final = {"required": True, "preferred": False}

SlotLabels = tuple[tuple[str, str], ...]
"""Labels of a slot: pairs of name and value, sorted."""


class Level(StrEnum):
    """The part of a host that near slots share, and that slots apart from each other do not
    share.
    """

    HOST = "host"
    NUMA = "numa"  # one NUMA node
    L3 = "l3"  # the cpus that share one last-level cache
    CORE = "core"  # one physical core


@dataclass(frozen=True, slots=True)
class NeighborRule(Value):
    """One rule about other slots of the same job.

    Attributes:
        labels: the rule is about slots that have all these labels.
        apart: True if the slot must be apart from these slots, False if it must be near one of
            them.
        level: the part of a host that counts.
        required: False if the rule is only preferred.
    """

    labels: SlotLabels
    apart: bool = False
    level: Level = Level.HOST
    required: bool = True

    def selects(self, labels: SlotLabels) -> bool:
        """Returns True if the rule is about slots with these labels."""
        return all(each in labels for each in self.labels)

    def __str__(self) -> str:
        return f"{'apart' if self.apart else 'near'} {rule_text(self)}"


def rule_text(rule: NeighborRule) -> str:
    """Returns a rule as `read_rule` reads it, without "near" or "apart"."""
    labels = ",".join(f"{name}={value}" for name, value in rule.labels)
    return f"{labels}@{rule.level}:{'required' if rule.required else 'preferred'}"


def read_rule(field: str, text: str, *, apart: bool) -> NeighborRule:
    """Reads a rule.

    Args:
        field: name of the field, for errors.
        text: the text, for example "app=db@numa:preferred".
        apart: True if the slot must be apart from the selected slots, False if it must be near
            them.

    Raises:
        InvalidArgument: the text is not a rule.
    """
    rest, colon, strength = text.rpartition(":")
    if not colon or strength not in _STRENGTHS:
        rest, strength = text, "required"
    selector, at, level = rest.rpartition("@")
    if not at or level not in set(Level):
        selector, level = rest, Level.HOST
    pairs: dict[str, str] = {}
    for each in selector.split(","):
        name, equals, value = each.partition("=")
        if not equals or not name or name in pairs or "@" in value or ":" in value:
            levels = "|".join(Level)
            expected = f"KEY=VALUE[,KEY=VALUE...][@{levels}][:required|:preferred]"
            raise InvalidArgument(field, text, f"{expected}, such as app=db@numa:preferred")
        pairs[name] = value
    labels = tuple(sorted(pairs.items()))
    return NeighborRule(labels, apart, Level(level), _STRENGTHS[strength])
