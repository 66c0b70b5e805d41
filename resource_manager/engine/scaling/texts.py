"""What is said about plans, for people."""

from __future__ import annotations

from collections.abc import Mapping

from resource_manager.engine.model.texts import profile_text
from resource_manager.engine.placement.elastic import Content
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

_TOLD_MAX = 3
"""So many different requests are spelled out."""


def cause_of(gangs: GangLedger, content: Content) -> str:
    """Why an executor is asked for: "3 requests of 1 cpu, 1Gi fit no executor"."""
    told = [*counted(content.shapes), *(gang_text(gangs, name) for name in content.gangs)]
    more = len(told) - _TOLD_MAX
    told = [*told[:_TOLD_MAX], *([f"{more} more"] if more > 0 else [])]
    one = len(told) == 1 and (content.requests == 1 or not content.shapes)
    whole = " and ".join([", ".join(told[:-1]), told[-1]]) if len(told) > 1 else told[0]
    return f"{whole} {'fits' if one else 'fit'} no executor"


def counted(shapes: Mapping[SchedulingClass, int]) -> list[str]:
    """Requests by what they ask for: "3 requests of 1 cpu, 1Gi"."""
    return [
        f"{count} {'request' if count == 1 else 'requests'} of {shape_text(shape)}"
        for shape, count in shapes.items()
    ]


def gang_text(gangs: GangLedger, gang_id: str) -> str:
    """A gang and its size."""
    waiting = gangs.waiting.get(gang_id)
    return f"gang {gang_id}" + (f" of {len(waiting.members)}" if waiting is not None else "")


def shape_text(shape: SchedulingClass) -> str:
    """What a request asks for."""
    labels = "".join(f", {name}={value}" for name, value in shape.labels)
    return profile_text(shape.profile) + labels
