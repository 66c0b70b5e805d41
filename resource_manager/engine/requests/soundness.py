"""What is wrong with a request by itself, whatever executors there are."""

from __future__ import annotations

from finegrain.errors import Reason
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import ItemOutcome
from resource_manager.engine.model.settings import EngineSettings


def unsound(settings: EngineSettings, spec: RequestSpec) -> ItemOutcome | None:
    """Why nobody could serve it as it is; None: it is sound."""
    profile = spec.profile
    if profile is None:
        return None
    if profile.cpu_milli < settings.cpu_milli_min:
        return _below(spec, "cpu_milli", profile.cpu_milli, settings.cpu_milli_min)
    if profile.memory_bytes < settings.memory_bytes_min:
        return _below(spec, "memory_bytes", profile.memory_bytes, settings.memory_bytes_min)
    if spec.cpu_limit_milli and spec.cpu_limit_milli < profile.cpu_milli:
        return _below(spec, "cpu_limit_milli", spec.cpu_limit_milli, profile.cpu_milli)
    return None


def taken(allocation_id: str) -> ItemOutcome:
    """The id is another request's."""
    return ItemOutcome(
        allocation_id,
        Reason.ALREADY_EXISTS,
        f"allocation {allocation_id} exists with other content or another owner; choose a new id",
    )


def _below(spec: RequestSpec, field: str, value: int, least: int) -> ItemOutcome:
    return ItemOutcome(
        spec.allocation_id,
        Reason.INVALID_ARGUMENT,
        f"{field} is {value}; expected at least {least}, or no profile at all for a default slot",
        (("field", field), ("value", str(value)), ("least", str(least))),
    )
