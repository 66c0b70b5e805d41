"""Writes texts for people about plans for new executors."""

from __future__ import annotations

from collections.abc import Mapping

from resource_manager.engine.model.texts import profile_text
from resource_manager.engine.placement.elastic import Content
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

_NAMED_MAX = 3
"""The largest number of different kinds of requests that one text names."""


def cause_of(gangs: GangLedger, content: Content) -> str:
    """Returns the reason why an executor is requested, such as "3 requests of 1 cpu, 1Gi fit no
    executor".
    """
    named = [*counted(content.classes), *(gang_text(gangs, name) for name in content.gangs)]
    more = len(named) - _NAMED_MAX
    named = [*named[:_NAMED_MAX], *([f"{more} more"] if more > 0 else [])]
    one = len(named) == 1 and (content.requests == 1 or not content.classes)
    whole = " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else named[0]
    return f"{whole} {'fits' if one else 'fit'} no executor"


def counted(scheduling_classes: Mapping[SchedulingClass, int]) -> list[str]:
    """Returns a text for each scheduling class, such as "3 requests of 1 cpu, 1Gi"."""
    return [
        f"{count} {'request' if count == 1 else 'requests'} of {class_text(scheduling_class)}"
        for scheduling_class, count in scheduling_classes.items()
    ]


def gang_text(gangs: GangLedger, gang_id: str) -> str:
    """Returns the id of a gang and its number of members, such as "gang g1 of 4"."""
    waiting = gangs.waiting.get(gang_id)
    return f"gang {gang_id}" + (f" of {len(waiting.members)}" if waiting is not None else "")


def class_text(scheduling_class: SchedulingClass) -> str:
    """Returns the resources and labels of a scheduling class, such as "1 cpu, 1Gi memory,
    zone=a".
    """
    labels = "".join(f", {name}={value}" for name, value in scheduling_class.labels)
    return profile_text(scheduling_class.profile) + labels
