"""Renders the output of stories, one line per fact."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import MIB, Amounts, ResourceProfile
from resource_manager.engine.explain.groups import GroupView
from resource_manager.engine.explain.lists import ExecutorView, RequestView, SlotView
from resource_manager.engine.explain.provisions import ProvidersView
from resource_manager.engine.explain.requests import Explanation
from resource_manager.engine.model.effects import (
    Effect,
    ProbeExecutor,
    PublishClusterEvent,
    PublishJobEvent,
    SendAllocate,
    SendFree,
    SendResize,
    StartExecutor,
    StopExecutor,
)
from resource_manager.engine.model.entities import JobEvent, Resize, Slot
from resource_manager.engine.model.events import ReportAnswer
from tests.scenarios import cpus_render

NOTED = ("executor_unreachable", "executor_reachable", "cpus_lost", "cpus_returned")
"""Kinds of cluster events that stories print."""


def effect(one: Effect) -> Iterator[str]:
    if isinstance(one, SendAllocate):
        for order in one.orders:
            slot = order.slot
            yield (
                f"carve {_name(slot.allocation_id, slot.generation)} on {one.executor_id}:"
                f" {profile(slot.profile)}{cpus_render.assignment(slot.assignment)}"
            )
    elif isinstance(one, SendFree):
        for name, generation, _ in one.slots:
            yield f"free {_name(name, generation)} on {one.executor_id}"
    elif isinstance(one, SendResize):
        name = _name(one.allocation_id, one.generation)
        change = one.resize
        yield (
            f"resize {name} on {one.executor_id} to {size(change)} (change {change.number})"
            f"{cpus_render.assignment(change.assignment)}"
        )
    elif isinstance(one, StartExecutor):
        yield f"start {one.executor_id}{' again' if one.again else ''}"
    elif isinstance(one, StopExecutor):
        yield f"stop {one.executor_id}{f' by {one.handle}' if one.handle else ''}"
    elif isinstance(one, ProbeExecutor):
        yield f"dial {one.executor_id}"
    elif isinstance(one, PublishClusterEvent):
        if one.event.kind in NOTED:
            about = one.event.allocation_id or one.event.executor_id
            yield f"note {one.event.kind} {about}: {one.event.message}"
    elif isinstance(one, PublishJobEvent):
        yield job_event(one.event)


def job_event(event: JobEvent) -> str:
    where = f" on {event.slot['executor_id']}" if event.slot and event.state == "GRANTED" else ""
    why = f" ({event.reason})" if event.reason else ""
    more = f": {event.message}" if event.reason in ("RESIZED", "RESIZE_REFUSED") else ""
    name = _many(event.allocation_id, event.count)
    return f"event of {event.job_id}: {name} {event.state}{where}{why}{more}"


def size(one: Slot | Resize) -> str:
    limit = one.cpu_limit_milli
    return profile(one.profile) + (f" limit={limit}m" if limit > one.profile.cpu_milli else "")


def changes(one: Slot) -> str:
    """Returns the ordered and the waiting resize of a slot, as lists show them."""
    found = [(one.ordered, "ordered"), (one.wanted, "waits")]
    texts = [f"{size(each)} {how} (change {each.number})" for each, how in found if each]
    return f", {', then '.join(texts)}" if texts else ""


def profile(one: ResourceProfile) -> str:
    extended = "".join(f" {name}={amount}" for name, amount in one.extended)
    return f"cpu={one.cpu_milli}m mem={one.memory_bytes // MIB}Mi{extended}"


def amounts(some: Amounts) -> str:
    mem = some.get("memory_bytes", 0) // MIB
    return f"cpu={some.get('cpu_milli', 0)}m mem={mem}Mi"


def unowned(executor_id: str, keys: tuple[tuple[str, int], ...]) -> Iterator[str]:
    for name, generation in keys:
        yield f"{executor_id} must free the unowned slot {_name(name, generation)}"


def report_answer(executor_id: str, number: int, answer: ReportAnswer) -> Iterator[str]:
    if answer.register_again:
        yield f"{executor_id} must register again"
    elif answer.send_full_report:
        yield f"{executor_id} must send a full report"
    elif answer.acknowledged_report_number != number:
        yield (
            f"report {number} of {executor_id} is dropped;"
            f" the last accepted one is {answer.acknowledged_report_number}"
        )
    yield from unowned(executor_id, answer.unowned)


def request(view: RequestView) -> str:
    one = view.request
    where = f" on {view.slot.slot.executor_id}" if view.slot else ""
    why = f" ({view.reason})" if view.reason else ""
    name = _many(_name(one.allocation_id, one.generation), view.count)
    return f"{name} {one.state}{where}{why}"


def slot(view: SlotView) -> str:
    one = view.slot
    return (
        f"{_name(one.allocation_id, one.generation)} {one.state} on {one.executor_id}:"
        f" {size(one)}{cpus_render.assignment(one.assignment)}{changes(one)}"
    )


def executor(view: ExecutorView) -> str:
    state = f"{view.executor.state}{' draining' if view.executor.draining else ''}"
    state += " unreachable" if view.unreachable_reason else ""
    return (
        f"{view.executor.executor_id} {state}: {view.slots} slots,"
        f" allocated {amounts(view.allocated)}, available {amounts(view.available)}"
    )


def explanation(one: Explanation) -> Iterator[str]:
    title = f"{one.view.request.allocation_id} {one.view.request.state}"
    reason = f" {one.primary_reason}" if one.primary_reason else ""
    yield f"{title}{reason}: {one.summary}"
    for verdict in one.executors:
        blockers = f" [{' '.join(verdict.blockers)}]" if verdict.blockers else ""
        yield f"  {verdict.executor_id}: {verdict.message}{blockers}"
    for status in one.dimensions:
        yield (
            f"  {status.dimension}: requested {status.asked}, free {status.free},"
            f" largest on one executor {status.largest_hole}, total {status.total}"
        )
    for change in one.would_fit_if:
        yield f"  {change.message}"
    if one.gang is not None:
        yield f"  gang {one.gang.gang.gang_id} of {one.gang.members}: {one.gang.summary}"
        for spot in one.gang.spots:
            if spot.name:
                yield f"    {spot.name}: {spot.placeable}"
    for each in one.resizes:
        yield f"  change {each.resize.number} to {size(each.resize)}: {each.summary}"
        for status in each.dimensions:
            yield (
                f"    {status.dimension}: grows by {status.asked}, free {status.free},"
                f" total {status.total}"
            )
    if one.blocked_by:
        names = " ".join(_name(s.allocation_id, s.generation) for s in one.blocked_by)
        yield f"  blocked by {names} on {one.blocked_by[0].executor_id}"


def _name(allocation_id: str, generation: int) -> str:
    return allocation_id if generation <= 1 else f"{allocation_id} (generation {generation})"


def group(view: GroupView) -> str:
    one, flow = view.group, view.flow
    return (
        f"{one.name}: weight {one.weight:g}, {view.running} slots ({amounts(view.used)}),"
        f" {view.waiting} wait, share {flow.share_now:.3f} of {view.share_entitled:.3f}"
    )


def _many(name: str, count: int) -> str:
    return name if count == 1 else f"{name} and {count - 1} more"


def providers(view: ProvidersView) -> Iterator[str]:
    for each in view.shapes:
        counts = ", ".join(f"{count} {name}" for name, count in each.executors.items()) or "none"
        backoff = ""
        if each.failures:
            backoff = f"; {each.failures} failures, last {each.last_failure}"
        yield f"{each.shape.name}: {counts}{backoff}"
    for one in view.executors:
        provision = one.provision
        planned = f", planned: {'; '.join(one.planned)}" if one.planned else ""
        said = f" ({provision.message})" if provision.message else ""
        yield f"{provision.executor_id} {provision.state}{said}: {provision.cause}{planned}"
    yield f"present {amounts(view.present)}"
    for left in view.unplanned:
        yield f"unplanned {left}"
