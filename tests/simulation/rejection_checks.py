"""Checks that exactly the requests that no executor could host are rejected, and in time.

It compares amounts and labels with what executors announced. The engine's own tests check whether
cpus and NUMA nodes suit, and whether gangs fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from finegrain.devices.request import DeviceRequest
from finegrain.errors import Reason
from finegrain.resources import Amounts, booking, fits, has_separate_pools
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.model.effects import Effect, PublishJobEvent
from resource_manager.engine.model.entities import JobEvent, RequestSpec
from resource_manager.engine.state import State
from tests.simulation.follower import names_of

SLACK_MS = 2_000
"""How late a request may be rejected: ticks come with batches, which take time."""


class RejectionChecks:
    """Records when the last executor registered with each leading manager."""

    def __init__(self) -> None:
        self.late = 0
        self._knew_all: dict[int, bool] = {}  # by epoch: the value before the last decision
        # for each epoch: the sum of the registration numbers, and the time of its last change
        self._registered: dict[int, tuple[int, int]] = {}

    def decided(self, state: State, effects: Iterable[Effect], now_ms: int) -> Iterator[str]:
        """Yields problems with the rejections among the effects of a decision."""
        since_ms = self._since_ms(state, now_ms)
        # An executor may be lost in the same step, by a timer that fires after the rejection.
        known = _all_known(state) or self._knew_all.get(state.rm_epoch, False)
        self._knew_all[state.rm_epoch] = _all_known(state)
        for effect in effects:
            if not isinstance(effect, PublishJobEvent):
                continue
            event = effect.event
            if event.state is not RequestState.REJECTED or event.reason != Reason.INFEASIBLE_NEVER:
                continue
            self.late += event.count
            yield from _too_early(state, event, now_ms - since_ms, known=known)
            for name in names_of(event.allocation_id, event.count):
                request = state.requests.named(name)
                if request is not None:
                    yield from _wrong(state, request.spec)

    def healed(self, state: State, now_ms: int) -> Iterator[str]:
        """Yields requests that should have been rejected by now."""
        after_ms = state.settings.infeasible_after_ms + SLACK_MS
        if not _all_known(state) or now_ms - self._since_ms(state, now_ms) < after_ms:
            return
        for request in state.requests.values():
            spec = request.spec
            if request.state is not RequestState.PENDING or spec.allow_pending or spec.gang_id:
                continue
            # Best-effort slots are booked on separate cpu capacity.
            if spec.cpu_policy.best_effort:
                continue
            hosts = ((host.total, host.labels) for host in state.hosts.values())
            shapes = ((each.total, dict(each.labels)) for each in state.elastic.shapes.values())
            if not any(_could_host(*each, spec) for each in (*hosts, *shapes)):
                yield f"{spec.allocation_id} still waits, and no executor could host it"

    def _since_ms(self, state: State, now_ms: int) -> int:
        """Returns when an executor last registered with this incarnation."""
        numbers = sum(host.executor.registration_number for host in state.hosts.values())
        known = self._registered.get(state.rm_epoch)
        if known is None or known[0] != numbers:
            known = self._registered[state.rm_epoch] = numbers, now_ms
        return known[1]


def _all_known(state: State) -> bool:
    states = {host.executor.state for host in state.hosts.values()}
    return ExecutorState.ACTIVE in states and ExecutorState.UNCONFIRMED not in states


def _too_early(state: State, event: JobEvent, passed_ms: int, *, known: bool) -> Iterator[str]:
    if not known:
        states = sorted({host.executor.state for host in state.hosts.values()})
        yield f"{event.allocation_id} is rejected while executors are {states}"
    after_ms = state.settings.infeasible_after_ms
    if passed_ms < after_ms:
        yield (
            f"{event.allocation_id} is rejected {passed_ms} ms after an executor registered,"
            f" not {after_ms} ms"
        )


def _wrong(state: State, spec: RequestSpec) -> Iterator[str]:
    if spec.gang_id:
        return  # another member may be the cause
    if spec.allow_pending:
        yield f"{spec.allocation_id} is rejected, and allows to wait"
    if (
        spec.cpu_policy.topology_constrained
        or spec.cpu_policy.best_effort
        or state.hosts.indexes.aligning
        or (spec.profile is not None and any(map(_is_choosy, spec.profile.devices)))
    ):
        return
    for host in state.hosts.values():
        # An executor that came back smaller may be too small for its own default slot.
        profile = spec.profile or host.executor.registration.default_profile
        if _could_host(host.total, host.labels, replace(spec, profile=profile)):
            yield f"{spec.allocation_id} is rejected, and {host.host_id} could host it"


def _is_choosy(request: DeviceRequest) -> bool:
    """True if sums of amounts do not say whether the devices of a host suit the request.

    The request needs shares of several devices, a virtual function, a model, a certain place, or a
    level of enforcement.
    """
    if request.count > 1:
        return True
    bare = DeviceRequest(request.type, 1, (), near=request.near)
    return replace(request, amounts=()) != bare


def _could_host(total: Amounts, labels: Mapping[str, str], spec: RequestSpec) -> bool:
    if not set(spec.required_labels) <= labels.items():
        return False
    if spec.profile is None:
        return True
    return fits(booking(spec.profile, separate_pools=has_separate_pools(total)), total)
