"""Applies one event to the state, and returns an answer and effects. No other code changes the
state.

`step` reads no clock, makes no ids and does no I/O. If the caller's input is wrong, `step` raises a
`FinegrainError` before it changes the state. The errors `IllegalTransition` and `InvariantBroken`
show a bug. After such an error, the state is possibly changed in part, so the caller drops the
state and restores it from the store.

The caller applies events in batches: any number of events, followed by one `Decide`. Then the
caller takes the changed rows (`State.changes.take()`) and commits them. Only after the commit, the
caller performs the effects and sends the answers. Only `Decide` places requests and sends commands.
"""

from __future__ import annotations

from itertools import islice
from typing import assert_never

from resource_manager.engine.executors.device_cordons import cordon_device, uncordon_device
from resource_manager.engine.executors.host_settings import set_host_policy
from resource_manager.engine.executors.reachability import executor_probed, probe_timer_fired
from resource_manager.engine.executors.refusals import refusal_timer_fired
from resource_manager.engine.executors.registration import (
    drain_timer_fired,
    forget_executor,
    register_executor,
    request_drain,
    request_undrain,
    silence_timer_fired,
)
from resource_manager.engine.executors.reports import slots_reported
from resource_manager.engine.jobs.group_rules import change_group_rules
from resource_manager.engine.jobs.group_users import change_group_users
from resource_manager.engine.jobs.groups import delete_group, set_group
from resource_manager.engine.jobs.lifecycle import (
    keep_alive,
    lease_timer_fired,
    register_job,
    request_job_end,
    retention_timer_fired,
)
from resource_manager.engine.jobs.users import delete_user_limits, set_user_limits
from resource_manager.engine.model.effects import StepResult
from resource_manager.engine.model.events import (
    CommandAnswered,
    CommandRefused,
    CommandUndelivered,
    Decide,
    DeviceCordoned,
    DeviceUncordoned,
    DrainRequested,
    Event,
    ExecutorProbed,
    ExecutorRegistered,
    ExecutorsAwaited,
    ForgetRequested,
    GroupDeleted,
    GroupRulesChanged,
    GroupSet,
    GroupUsersChanged,
    HostPolicySet,
    JobEndRequested,
    JobKeptAlive,
    JobRegistered,
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
    RequestsCancelled,
    RequestsSubmitted,
    ResizeRequested,
    SlotsReleased,
    SlotsReported,
    SlotsReuseRequested,
    Ticked,
    UndrainRequested,
    UserLimitsDeleted,
    UserLimitsSet,
)
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.requests.resize_intake import request_resize
from resource_manager.engine.requests.submission import (
    cancel_requests,
    release_slots,
    submit_requests,
)
from resource_manager.engine.scaling.arrival import executor_came
from resource_manager.engine.scaling.provider_answers import (
    provision_ended,
    provision_failed,
    provision_started,
    provision_stop_failed,
)
from resource_manager.engine.scheduling.commands import (
    command_answered,
    command_refused,
    command_undelivered,
)
from resource_manager.engine.scheduling.cycle import decide
from resource_manager.engine.scheduling.rejecting import infeasible_timer_fired
from resource_manager.engine.scheduling.slot_reuse import reuse_slots
from resource_manager.engine.state import State

TIMERS_AT_ONCE = 500
"""One step handles at most this many timers. This limit is needed, because the limit for changed
rows has no effect on timers that change no row.
"""


def step(state: State, event: Event) -> StepResult:
    """Applies one event.

    Args:
        state: the state, which is changed in place.
        event: the event, which contains the current time.

    Returns:
        The answer to the event, and effects in order.

    Raises:
        FinegrainError: the whole event is rejected. The handler of the event documents the reasons.
    """
    effects = state.journal.begin(event.at)
    # Advance the flows before the handler runs, because usage grows at the rates of the old state
    # up to this moment.
    state.flows.advance(event.at.monotonic_ms)
    answer = _handle(state, event)
    return StepResult(answer, effects)


def _handle(state: State, event: Event) -> object:  # noqa: C901, PLR0912, PLR0915 -- one case per event
    match event:
        case JobRegistered():
            return register_job(state, event)
        case JobKeptAlive():
            return keep_alive(state, event)
        case JobEndRequested():
            return request_job_end(state, event)
        case RequestsSubmitted():
            return submit_requests(state, event)
        case RequestsCancelled():
            return cancel_requests(state, event)
        case SlotsReleased():
            return release_slots(state, event)
        case SlotsReuseRequested():
            return reuse_slots(state, event)
        case ResizeRequested():
            return request_resize(state, event)
        case ExecutorRegistered():
            # `new` is computed before the registration, because the registration adds the host.
            new = event.registration.executor_id not in state.hosts
            answer = register_executor(state, event)
            executor_came(state, event.registration.executor_id, new=new)
            return answer
        case SlotsReported():
            return slots_reported(state, event)
        case CommandAnswered():
            command_answered(state, event)
        case CommandRefused():
            command_refused(state, event)
        case CommandUndelivered():
            command_undelivered(state, event)
        case ExecutorProbed():
            executor_probed(state, event)
        case ProvisionStarted():
            provision_started(state, event)
        case ProvisionFailed():
            provision_failed(state, event)
        case ProvisionEnded():
            provision_ended(state, event)
        case ProvisionStopFailed():
            provision_stop_failed(state, event)
        case ExecutorsAwaited():
            return state.awaited.begin(event.for_ms)
        case DrainRequested():
            return request_drain(state, event)
        case UndrainRequested():
            return request_undrain(state, event)
        case ForgetRequested():
            forget_executor(state, event)
        case GroupSet():
            return set_group(state, event)
        case GroupRulesChanged():
            return change_group_rules(state.groups, state.changes, state.journal, event)
        case GroupUsersChanged():
            return change_group_users(state.groups, state.changes, state.journal, event)
        case UserLimitsSet():
            set_user_limits(state.flows.users, state.changes, state.journal, event)
        case UserLimitsDeleted():
            delete_user_limits(state.flows.users, state.changes, state.journal, event)
        case GroupDeleted():
            delete_group(state, event)
        case DeviceCordoned():
            return cordon_device(state, event)
        case DeviceUncordoned():
            uncordon_device(state, event)
            return None
        case HostPolicySet():
            return set_host_policy(state, event)
        case Ticked():
            # During a stall, this process could receive no messages. So the stall must not count as
            # silence of jobs and executors.
            if event.after_stall:
                state.timers.listening_since_ms = state.journal.now_ms
            _fire_timers(state)
        case Decide():
            # The timers fire before the placement, because requests that end by an expired lease or
            # timeout must get no slots.
            if state.timers.left_over:
                _fire_timers(state)
            decide(state)
        case _:
            assert_never(event)
    return None


def _fire_timers(state: State) -> None:
    """Handles due timers until the journal of this step is full. The next `Decide` handles the
    remaining timers.
    """
    due = state.timers.due(state.journal.now_ms)
    # `due` is a lazy iterator: timers that are not taken from it stay in `left_over`.
    for timer, entity_id in islice(due, TIMERS_AT_ONCE):
        _fire(state, timer, entity_id)
        if state.journal.is_full:
            return


def _fire(state: State, timer: Timer, entity_id: str) -> None:  # noqa: C901, PLR0912 -- one case per timer
    match timer:
        case Timer.LEASE:
            lease_timer_fired(state, entity_id)
        case Timer.RETENTION:
            retention_timer_fired(state, entity_id)
        case Timer.SILENCE:
            silence_timer_fired(state, entity_id)
        case Timer.DRAIN:
            drain_timer_fired(state, entity_id)
        case Timer.COMMAND:
            state.outbox[entity_id] = None  # `dispatch` repeats the command
        case Timer.PROBE:
            probe_timer_fired(state, entity_id)
        case Timer.REFUSAL:
            refusal_timer_fired(state, entity_id)
        case Timer.GANG:
            state.gang_moves.gang_timer_fired(entity_id)
        case Timer.REQUEST:
            state.request_timeouts.request_timer_fired(entity_id)
        case Timer.RANGE:
            state.request_timeouts.range_timer_fired(entity_id)
        case Timer.INFEASIBLE:
            infeasible_timer_fired(state)
        case Timer.RESIZE:
            state.resizes.resize_timer_fired(entity_id)
        case Timer.PLAN | Timer.STARVATION:
            pass  # the next Decide checks whether it must plan or reserve capacity
        case Timer.PROVISION:
            state.provision_moves.provision_timer_fired(entity_id)
        case Timer.USAGE:
            state.usage_checkpoints.usage_timer_fired()
        case Timer.HISTORY:
            state.history.mark(state.journal.at.time_ms, state.changes)
            mark_ms = state.journal.now_ms + state.history.mark_interval_ms
            state.timers.arm(Timer.HISTORY, "", mark_ms)
        case _:
            assert_never(timer)
