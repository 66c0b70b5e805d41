"""Computes the index columns by which a placement strategy orders all hosts. The host with the
highest score comes first.
"""

from __future__ import annotations

from finegrain.resources import CPU_MILLI, MEMORY_BYTES, MEMORY_PARTS, Amounts
from resource_manager.engine.model.settings import Strategy

SCORE = "score"
"""Index column of the strategy "spread": the free part of the dimension with the smallest free
part, in millionths.
"""

CPU_SURPLUS = "score.cpu"
"""Index column of the strategy "balanced": 1,000,000 plus the free part of cpu minus the free part
of memory, in millionths. Example: if 50 % of the cpu and 20 % of the memory are free, the score is
1,300,000.
"""

MEMORY_SURPLUS = "score.memory"
"""Index column of the strategy "balanced": 1,000,000 plus the free part of memory minus the free
part of cpu, in millionths.
"""

SHARE_UNIT = 1_000_000

MEMORY = (MEMORY_BYTES, *MEMORY_PARTS)


def score_columns(
    strategy: Strategy, total: Amounts, free: Amounts, slots_max: int, slots: int
) -> dict[str, int]:
    """Returns the score columns of one host.

    Args:
        strategy: the placement strategy of the cluster.
        total: the total amounts of the host, in the units of the index.
        free: the free amounts of the host, in the units of the index.
        slots_max: the largest number of slots that the host may have. It is 0 if there is no limit.
        slots: the number of further slots that the host may have.
    """
    match strategy:
        case "spread":
            # The scarcest dimension decides. Integer division keeps the order the same on every
            # machine.
            shares = [free.get(name, 0) * SHARE_UNIT // amount for name, amount in total.items()]
            if slots_max:
                shares.append(slots * SHARE_UNIT // slots_max)
            return {SCORE: min(shares, default=0)}
        case "balanced":
            # `max` avoids a division by zero on hosts without cpu for slots.
            cpu = free.get(CPU_MILLI, 0) * SHARE_UNIT // max(1, total.get(CPU_MILLI, 0))
            # The memory parts are added up, so that hosts with one memory pool and hosts with
            # several pools can be compared.
            has = sum(total.get(name, 0) for name in MEMORY)
            memory = sum(free.get(name, 0) for name in MEMORY) * SHARE_UNIT // max(1, has)
            surplus = cpu - memory
            return {CPU_SURPLUS: SHARE_UNIT + surplus, MEMORY_SURPLUS: SHARE_UNIT - surplus}
        case "pack":
            return {}
