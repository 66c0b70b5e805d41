"""Takes executors out of service: marks them lost, or deletes them with their slots.

A lost executor is unreachable, but is possibly still running. Its slots stay booked until the
executor returns or is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.errors import Reason
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.gangs import GangMoves
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.moves import RequestMoves, key_of
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.changes import ChangeTracker, Numbers
from resource_manager.engine.model.entities import HostSetting, Slot
from resource_manager.engine.model.state_tables import RegistrationInput
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.rejection_clock import RejectionClock


@dataclass(slots=True, eq=False)
class Departures:
    """Marks executors lost, and deletes executors."""

    journal: Journal
    changes: ChangeTracker
    costs: Costs
    host_settings: dict[str, HostSetting]
    hosts: Hosts
    numbers: Numbers
    outbox: dict[str, None]
    rejection_clock: RejectionClock
    timers: Timers
    transitions: Transitions
    gang_moves: GangMoves
    moves: RequestMoves
    usage: UsageAccounting

    def lose_executor(self, host: Host, message: str) -> None:
        """Marks an executor lost. The slots become FREEING, and the requests lose their slots."""
        executor = host.executor
        # The rejection clock is stopped while an executor is unconfirmed. The clock restarts when
        # this executor is lost.
        if executor.state is ExecutorState.UNCONFIRMED:
            self.rejection_clock.restart(self.journal.now_ms)
        # The state LOST is set first. If the process stops before all slots are freed, the silence
        # timer frees the remaining slots after the restart.
        self.transitions.move_executor(executor, RegistrationInput.FALL_SILENT)
        self.journal.cluster_event("executor_lost", executor_id=host.host_id, message=message)
        self.free_lost_slots(host, message)
        self.changes.executor(executor)
        self.usage.total_changed(host)

    def free_lost_slots(self, host: Host, message: str) -> None:
        """Frees slots of a lost executor until the step is full. The executor's silence timer frees
        the remaining slots in later steps.
        """
        self.free_slots(host, Reason.EXECUTOR_LOST, message, then=Timer.SILENCE)
        # Drop the command in flight, because it belongs to the old registration. A late answer to
        # the command is then ignored.
        host.start_conversation()

    def delete_executor(self, host: Host) -> None:
        """Deletes an executor with its slots. The caller must be sure that the executor and its
        slots do not exist any more.

        All slots are deleted in this step, even if there are very many.
        """
        message = f"executor {host.host_id} was deleted"
        self.free_slots(host, Reason.EXECUTOR_LOST, message, then=None)
        # `free_slots` has set all slots to FREEING. The slots are deleted before the host, because
        # `vanish` needs the host.
        for slot in list(host.slots.values()):
            self.moves.vanish(slot)
        # The next registration with this id must get a higher number than all earlier
        # registrations.
        self.numbers.keep_registration(host.executor.registration_number)
        self.hosts.forget(host)
        self.outbox.pop(host.host_id, None)
        self.rejection_clock.restart(self.journal.now_ms)
        # The cost of a slot depends on the sum of the totals of all executors, so the total of this
        # executor is removed from the sum.
        self.costs.count(host.host_id, {})
        self.changes.delete_executor(host.host_id)
        self.journal.cluster_event("executor_forgotten", executor_id=host.host_id)

    def free_slots(self, host: Host, reason: Reason, message: str, *, then: Timer | None) -> None:
        """Frees the slots of an executor that gets no new slots.

        Args:
            host: the executor.
            reason: reason for the requests that lose their slots.
            message: reason for people.
            then: the timer whose handler frees the remaining slots if the step becomes full. None
                means that all slots are freed in this step.
        """
        slots: list[Slot] = [  # a copy, because the loop can delete slots of the host
            slot for slot in host.slots.values() if slot.state is not SlotState.FREEING
        ]
        for slot in slots:
            if then is not None and self.journal.is_full:
                self.timers.put_off(then, host.host_id)
                return
            if host.slots.get(key_of(slot)) is not slot or slot.state is SlotState.FREEING:
                continue  # the slot was freed together with an earlier member of its gang
            # Call `lose` first: `free` marks the slot as superseded only if its request is still
            # live.
            self.gang_moves.lose(slot, reason, message)
            self.moves.free(slot)

    def forget_settings(self, executor_id: str) -> None:
        """Deletes the host settings of an executor whose id will not be used again."""
        if self.host_settings.pop(executor_id, None) is not None:
            self.changes.delete_host_setting(executor_id)
