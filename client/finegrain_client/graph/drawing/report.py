"""Describes a plan in words and tables: regions, groups, operators, edges, broken chains."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from finegrain.units import counted, format_bytes_exactly
from finegrain_client.graph.drawing.labels import OBSTACLES, profile_text
from finegrain_client.graph.drawing.text import picture
from finegrain_client.graph.plan import ChainPlan, OperatorPlan, Plan
from finegrain_client.graph.values import Exchange


def describe(plan: Plan, *, wide: bool = False) -> str:
    """Returns the whole plan as text: a picture, and tables of groups, operators and edges.

    Args:
        plan: the plan.
        wide: if true, also show programs, ports, the place of stored output, and co-location
            groups.
    """
    counts = [counted(len(plan.regions), "region"), counted(plan.tasks, "task")]
    heading = f"job {plan.name}: {plan.mode}, {', '.join(counts)}"
    return "\n\n".join(
        [
            f"{heading}, needs {counted(plan.slots_needed, 'slot')}",
            picture(plan),
            "\n".join(_groups(plan)),
            "\n".join(_operators(plan, wide=wide)),
            *(["\n".join(_edges(plan))] if plan.edges else []),
            *_notes(plan),
        ]
    )


def _groups(plan: Plan) -> Iterator[str]:
    rows = [
        (each.name, str(each.slots), profile_text(each.profile), "user" if each.by_user else "")
        for each in plan.groups
    ]
    yield from _table(("GROUP", "SLOTS", "EACH SLOT", "SET BY"), rows)


def _operators(plan: Plan, *, wide: bool) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        (
            operator.name,
            chain.name if operator is chain.operators[0] else "same",
            str(chain.parallelism),
            _slots(chain),
            _share(operator),
            "" if (quota := operator.managed_memory_bytes) is None else format_bytes_exactly(quota),
            _network(chain) if operator is chain.operators[0] else "same",
            *(_wide(plan, chain, operator) if wide else ()),
        )
        for chain in plan.chains
        for operator in chain.operators
    ]
    headings = ("OPERATOR", "TASK", "TASKS", "SLOTS", "MANAGED", "QUOTA", "NETWORK")
    more = ("OUTPUT", "PORTS", "CO-LOCATED", "PROGRAM") if wide else ()
    yield from _table((*headings, *more), rows)


def _wide(plan: Plan, chain: ChainPlan, operator: OperatorPlan) -> tuple[str, ...]:
    stored = {each.producer for each in plan.edges if each.exchange is Exchange.BLOCKING}
    return (
        operator.output if operator.name in stored else "",
        str(chain.ports or ""),
        chain.co_location_group,
        shlex.join(chain.program),
    )


def _edges(plan: Plan) -> Iterator[str]:
    rows = [
        (
            edge.name,
            edge.exchange,
            edge.pattern,
            "yes" if edge.obstacle is None else f"no: {OBSTACLES[edge.obstacle]}",
            str(edge.channels or "-"),
            str(edge.subpartitions or "-"),
        )
        for edge in plan.edges
    ]
    headings = ("EDGE", "EXCHANGE", "PATTERN", "CHAINED", "CHANNELS", "SUBPARTITIONS")
    yield from _table(headings, rows)


def _slots(chain: ChainPlan) -> str:
    """Returns the slots of the group in which the tasks of a chain run. The text lists at most 8
    slots.
    """
    if chain.parallelism == chain.spread.slots:
        return "all"
    some = [str(chain.spread.slot_of(index)) for index in range(min(chain.parallelism, 8))]
    return ",".join(some) + (",..." if chain.parallelism > len(some) else "")


def _share(operator: OperatorPlan) -> str:
    on_heap, off_heap = operator.managed.on_heap, operator.managed.off_heap
    parts = [str(off_heap)] if off_heap or not on_heap else []
    return ", ".join([*parts, *([f"on heap {on_heap}"] if on_heap else [])])


def _network(chain: ChainPlan) -> str:
    size = format_bytes_exactly(chain.network_memory_bytes)
    return f"{counted(chain.network_buffers, 'buffer')}, {size}" if chain.network_buffers else "0"


def _notes(plan: Plan) -> Iterator[str]:
    broken = plan.broken_chains
    if broken:
        lines = [
            f"  {edge.name}: {edge.producer} is in group {plan.chain_of[edge.producer].group},"
            f" {edge.consumer} in group {plan.chain_of[edge.consumer].group}"
            for edge in broken
        ]
        yield "\n".join(["not chained, because slot sharing groups differ:", *lines])


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table, without columns that are empty in all rows."""
    used = [at for at in range(len(headings)) if any(row[at] for row in rows)]
    lines = [headings, *rows]
    widths = [max(len(line[at]) for line in lines) for at in used]
    for line in lines:
        cells = (line[at].ljust(width) for at, width in zip(used, widths, strict=True))
        yield "  ".join(cells).rstrip()
