"""Draws the settings of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from resource_manager.engine.model.settings import EngineSettings, Fairness, Provisioning

REPORT_MS = 800

USUAL = Fairness(usage_interval_ms=1_000)


def some_settings(
    large: bool,
    rng: Random,
    chance: Callable[[str], Random],
    provisioning: Provisioning,
    fair_shares: bool,
) -> EngineSettings:
    """Draws random settings that are valid.

    Args:
        large: True: there are very many hosts.
        rng: the first random source, whose sequence of draws must stay the same.
        chance: makes further random sources.
        provisioning: settings of providers.
        fair_shares: True: draw random settings of fairness; False: use the usual settings.
    """
    return EngineSettings(
        lost_timeout_ms=25_000 if large else 4_000,
        report_interval_ms=REPORT_MS,
        strategy=rng.choice(("pack", "spread")),
        pack_candidates=rng.choice((1, 2, 8)),
        classes_tried_max=chance("rounds").choice((1, 3, 1_000)),
        command_items_max=rng.choice((1, 3, 1_000)),
        command_retry_max_ms=2_000,
        unreachable_after_ms=rng.choice((1_000, 2_500)),
        probe_max_ms=2_000,
        refusal_backoff_min_ms=rng.choice((100, 1_000)),
        refusal_backoff_max_ms=5_000,
        infeasible_after_ms=chance("infeasible").choice((500, 3_000, 30_000)),
        ended_retention_ms=rng.choice((3_000, 86_400_000)),
        label_indexes_max=256 if large else rng.choice((1, 256)),
        job_events_max=rng.choice((20, 100_000)),
        resize_retry_min_ms=200,
        resize_retry_max_ms=2_000,
        provisioning=provisioning,
        fairness=_some_fairness(chance("fairness")) if fair_shares else USUAL,
    )


def _some_fairness(rng: Random) -> Fairness:
    return Fairness(
        order=rng.choice(("fair", "fair", "fair", "fair", "arrival")),
        usage_measure=rng.choice(("dominant", "slots", "cpu")),
        half_life_ms=rng.choice((5_000, 60_000, 900_000, None)),
        lookahead_ms=rng.choice((0, 1_000, 30_000)),
        usage_interval_ms=1_000,
        starvation_timeout_ms=rng.choice((500, 2_000, 8_000, 300_000)),
        starvation_placements=rng.choice((0, 0, 3, 20)),
        reservations_max=rng.choice((0, 1, 2, 8, 8)),
    )
