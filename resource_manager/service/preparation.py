"""Builds the engine's settings from the options."""

from __future__ import annotations

from typing import get_args

from finegrain.errors import InvalidArgument
from resource_manager.engine.model.settings import (
    EngineSettings,
    Fairness,
    Measure,
    Order,
    Provisioning,
    Strategy,
)
from resource_manager.options import ResourceManagerOptions


def settings_of(
    options: ResourceManagerOptions, provisioning: Provisioning | None = None
) -> EngineSettings:
    """Returns the engine's settings.

    Args:
        options: the configuration.
        provisioning: the settings in the providers' file; None: there is no such file.

    Raises:
        InvalidArgument: a number is outside of its range.
    """
    strategy: Strategy | None = next(
        (each for each in get_args(Strategy) if each == options.strategy), None
    )
    if strategy is None:
        raise InvalidArgument("strategy", options.strategy, "pack, spread or balanced")
    if options.report_interval_ms < 1:
        raise InvalidArgument("report_interval_ms", options.report_interval_ms, "1 or more")
    # A single late report must not make its executor count as lost.
    if options.lost_timeout_ms < 2 * options.report_interval_ms:
        raise InvalidArgument(
            "lost_timeout_ms",
            options.lost_timeout_ms,
            f"at least twice report_interval_ms ({options.report_interval_ms})",
        )
    if options.infeasible_after_ms < 0:
        raise InvalidArgument("infeasible_after_ms", options.infeasible_after_ms, "0 or more")
    return EngineSettings(
        report_interval_ms=options.report_interval_ms,
        lost_timeout_ms=options.lost_timeout_ms,
        strategy=strategy,
        cpu_milli_min=options.cpu_milli_min,
        memory_bytes_min=options.memory_bytes_min,
        job_requests_max=options.job_requests_max,
        job_scheduling_classes_max=options.job_scheduling_classes_max,
        requests_max=options.requests_max,
        infeasible_after_ms=options.infeasible_after_ms,
        revocation=options.revocation,
        revocation_grace_ms=options.revocation_grace_ms,
        lease_default_ms=options.lease_default_ms,
        job_events_max=options.job_events_max,
        cluster_events_max=options.cluster_events_max,
        cluster_events_age_ms=options.cluster_events_age_ms,
        ended_retention_ms=options.ended_retention_ms,
        provisioning=provisioning or Provisioning(),
        fairness=_sound(options.fairness),
        cluster_policy=options.cluster_policy,
    )


def _sound(fairness: Fairness) -> Fairness:
    """Checks the ranges of the settings, and returns the settings unchanged.

    Raises:
        InvalidArgument: a setting is outside of its range.
    """
    for name, value, known in (
        ("order", fairness.order, get_args(Order)),
        ("usage_measure", fairness.usage_measure, get_args(Measure)),
    ):
        if value not in known:
            raise InvalidArgument(f"fairness.{name}", value, f"one of {', '.join(known)}")
    least = {
        "half_life_ms": 1_000,
        "lookahead_ms": 0,
        "usage_interval_ms": 1,
        "starvation_timeout_ms": 1,
        "starvation_placements": 0,
        "reservations_max": 0,
    }
    for name, smallest in least.items():
        value = getattr(fairness, name)
        if value is not None and value < smallest:
            raise InvalidArgument(f"fairness.{name}", value, f"{smallest} or more")
    part = fairness.reserved_part_max
    if not 0 <= part <= 1:
        raise InvalidArgument("fairness.reserved_part_max", part, "a part, from 0 to 1")
    return fairness
