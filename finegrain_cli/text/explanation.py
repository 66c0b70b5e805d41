"""Explains a request as text. The text has the size of the request, the obstacles on each host, and
the changes after which the request would fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING

from finegrain.devices.device import GPU_MEMORY
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, DEVICE_PREFIX, EXTENDED_PREFIX
from finegrain.units import format_bytes, format_cpu, format_duration
from finegrain.values.states import RequestState
from finegrain_cli.text.columns import age, profile_text
from finegrain_cli.text.cpus import policy_text
from finegrain_cli.text.fit import output_width
from finegrain_cli.text.output import Column, OutputFormat, table_lines

if TYPE_CHECKING:
    from finegrain.values.explanations import Dimension
    from finegrain_client.types.explain import (
        ExecutorVerdict,
        Explanation,
        GangExplanation,
        ResizeExplanation,
    )


INDENT = "  "
_wrap = partial(wrap, break_on_hyphens=False, break_long_words=False)  # people copy whole ids
VERDICT_WIDTH_MIN = 40
"""If less is left for verdicts beside the other columns, each verdict has its own lines."""


def amount_text(dimension: str, amount: int) -> str:
    """Returns an amount in the unit that people use for its dimension."""
    if dimension in (CPU_MILLI, BEST_EFFORT_CPU_MILLI):
        return format_cpu(amount)
    if dimension.endswith("_bytes") or dimension == DEVICE_PREFIX + GPU_MEMORY:
        return format_bytes(amount)
    return str(amount)


def dimension_name(dimension: str) -> str:
    """Returns a dimension without its unit: "cpu", "memory", "gpu-core"."""
    name = dimension.removeprefix(EXTENDED_PREFIX).removeprefix(DEVICE_PREFIX)
    return name.removesuffix("_milli").removesuffix("_bytes").replace("_", " ")


def explanation_text(found: Explanation) -> str:
    """Returns the whole explanation. `finegrain explain` prints this text."""
    # Stage 1: the request, and the sums of the cluster.
    request = found.request.to_dict()
    state = found.request.state
    lines = [
        "  ".join(
            (
                f"request {found.request.allocation_id}",
                str(state),
                age(request, "create_time"),
                found.primary_reason or "-",
            )
        ),
        f"  {found.summary}",
        f"  profile  {profile_text(request['profile'])}",
    ]
    if (policy := policy_text(request["cpu_policy"])) != "-":
        lines.append(f"  cpus     {policy}")
    if found.dimensions:
        lines.append(f"  cluster  {_sums(found.dimensions)}")
    # In fair order, the steps show the place of the request. This place does not depend on the
    # arrival of the request.
    in_arrival_order = state is RequestState.PENDING and not found.steps
    earlier = f"{found.requests_ahead} came earlier; " if in_arrival_order else ""
    lines.append(
        f"  queue    {earlier}{found.executors_considered} executors "
        f"considered, {found.executors_fitting} fit now (state {found.snapshot_number})"
    )
    if state in (RequestState.PENDING, RequestState.ALLOCATING, RequestState.GRANTED):
        least = "at least " if found.more_may_fit else ""
        more = "" if state is RequestState.PENDING else "more "
        lines.append(f"  room     {least}{found.more_fit} {more}like this fit now")
    # Stage 2: the order of the queue, and the pending executor on which this request is planned.
    lines += _order(found)
    if found.planned_on:
        lines.append(
            f"  planned  on {found.planned_on}, which was requested; see finegrain providers"
        )
    # Stage 3: why the request does not fit on each executor.
    if found.executors:
        lines += ["", *(INDENT + line for line in _verdicts(found.executors))]
    if found.gang:
        lines += ["", *("  " + line for line in _gang(found.gang))]
    for each in found.resizes:
        lines += ["", *("  " + line for line in _resize(each))]
    # Stage 4: the changes that would help, and the slots whose end the request waits for.
    if found.would_fit_if:
        lines += ["", "  smallest changes"]
        lines += [f"    {each.message}" for each in found.would_fit_if]
    if found.blocked_by:
        lines += ["", "  waits for the end of"]
        for slot in found.blocked_by:
            held = profile_text(slot.profile.to_dict())
            own = f", cpus {slot.cpus}" if slot.cpus else ""
            lines.append(f"    {slot.allocation_id} on {slot.executor_id} ({held}{own})")
    return "\n".join(lines)


def _order(found: Explanation) -> list[str]:
    """Lists the flows that are served before the request, the limits that block the request, and
    the reserved capacity.
    """
    lines = [f"  order    {step.summary}" for step in found.steps]
    for limit in found.limits:
        name = limit.dimension
        used, asked, most = (
            amount_text(name, each) for each in (limit.used, limit.asked, limit.maximum)
        )
        owner = limit.user or (f"group {limit.group}" if limit.group else "the cluster")
        lines.append(
            f"  maximum  {owner} has {used} {dimension_name(name)} of at most {most}, "
            f"and {asked} more are requested"
        )
    if found.reservation:
        lines.append(f"  reserved {found.reservation.summary}")
    return lines + [f"  reserved {each.summary}" for each in found.held_for_others]


def _gang(gang: GangExplanation) -> list[str]:
    where = gang.gang.placement.lower().replace("_", "-")
    label = f":{gang.gang.label}" if gang.gang.label else ""
    together = f"{gang.placeable} of {gang.members} members could be placed together now"
    lines = [f"gang {gang.gang.gang_id} ({where}{label}): {together}", f"  {gang.summary}"]
    lines += [f"  {each.placeable} in {each.name or 'the whole cluster'}" for each in gang.spots]
    if gang.deadline_time:
        left_s = max(0.0, (gang.deadline_time - datetime.now(UTC)).total_seconds())
        lines.append(f"  times out in {format_duration(left_s)}")
    return lines


def _resize(found: ResizeExplanation) -> list[str]:
    to = profile_text(found.resize.profile.to_dict())
    lines = [f"resize {found.resize.resize_number} to {to} waits", f"  {found.summary}"]
    for each in found.dimensions:
        name = each.dimension
        lines.append(
            f"  {dimension_name(name)} {amount_text(name, each.asked)} more, "
            f"free {amount_text(name, each.free)} of {amount_text(name, each.total)}"
        )
    return lines


def _sums(dimensions: Iterable[Dimension]) -> str:
    return "; ".join(
        f"{dimension_name(each.dimension)}: requested {amount_text(each.dimension, each.asked)}, "
        f"free {amount_text(each.dimension, each.free)} of "
        f"{amount_text(each.dimension, each.total)}, most on one executor "
        f"{amount_text(each.dimension, each.largest_hole)}"
        for each in dimensions
    )


def _verdicts(verdicts: Iterable[ExecutorVerdict]) -> list[str]:
    shown = list(verdicts)
    names = sorted({each.dimension for verdict in shown for each in verdict.dimensions})

    def cell(verdict: ExecutorVerdict, name: str) -> str:
        for each in verdict.dimensions:
            if each.dimension == name:
                free = f"{amount_text(name, each.free)}/{amount_text(name, each.total)}"
                short = each.asked - each.free
                return free if short <= 0 else f"{free} short {amount_text(name, short)}"
        return "-"

    def column(name: str) -> Column:
        return Column(f"{dimension_name(name)} free", lambda verdict: cell(verdict, name))

    columns = [Column("executor", lambda verdict: verdict.executor_id), *map(column, names)]
    width = output_width() - len(INDENT)
    heading, *rows = table_lines(columns, shown, OutputFormat.WIDE)
    begin = max(map(len, (heading, *rows))) + 2
    # The verdict is wrapped, not cut. If the other columns leave little room, there are no columns.
    if width - begin < VERDICT_WIDTH_MIN:
        free = [
            ", ".join(f"{dimension_name(name)} {cell(each, name)}" for name in names)
            for each in shown
        ]
        return [
            line
            for each, amounts in zip(shown, free, strict=True)
            for line in (
                *_wrap(f"{each.executor_id}: {amounts}", width, subsequent_indent=INDENT * 2),
                *_wrap(each.message, width, initial_indent=INDENT, subsequent_indent=INDENT * 2),
            )
        ]
    lines = [f"{heading.ljust(begin)}VERDICT"]
    for row, verdict in zip(rows, shown, strict=True):
        message = verdict.message or "-"
        lines += _wrap(
            message, width, initial_indent=row.ljust(begin), subsequent_indent=begin * " "
        )
    return lines
