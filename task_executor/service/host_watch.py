"""Watches the host's cpus: which cpus go offline, and which cpus a kubelet gives to containers.

The watch passes changes to the cpu ledger. A slot that loses dedicated cpus continues to run, and
reports name this slot in a note.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import FinegrainError
from finegrain.logs import get_logger
from finegrain.topology import HostTopology
from task_executor.engine.slots import Slot
from task_executor.host.detection import allowed_cpus
from task_executor.host.helper_messages import KubeletFiles
from task_executor.host.kubelet import KubeletState, KubeletTexts, read_kubelet
from task_executor.host.kubelet.parsing import KubeletReading

NOTES_MAX = 8  # maximum number of notes on slots; the last note counts the remaining slots

ReadKubelet = Callable[[str], Awaitable[KubeletFiles | None]]
UpdateConditions = Callable[..., Awaitable[None]]

log = get_logger(__name__)


class KubeletWatch:
    """Keeps the last known state of a kubelet.

    If a file of the kubelet cannot be read, its last known content is used.

    Args:
        read_kubelet_files: the call `kubelet` of the helper, which reads the files of the kubelet.
        topology: the topology of the host.
    """

    def __init__(self, read_kubelet_files: ReadKubelet, topology: HostTopology) -> None:
        self._read_kubelet_files = read_kubelet_files
        self._topology = topology
        self._mark = ""
        self._reading: KubeletReading | None = None
        self._failure = ""

    @property
    def state(self) -> KubeletState | None:
        """The kubelet's state; None: there is no kubelet on this host."""
        return self._reading.state if self._reading else None

    async def refresh(self) -> KubeletState | None:
        """Reads the files again if they have changed, and returns the state. Errors are only
        logged.
        """
        try:
            found = await self._read_kubelet_files(self._mark)
        except (FinegrainError, OSError) as error:
            # Log the same failure only once, because this method runs every few seconds.
            if self._failure != str(error):
                log.warning("kubelet_not_read", error=str(error))
            self._failure = str(error)
            return self.state
        self._failure = ""
        # None: the files have not changed since the last read.
        if found is None:
            return self.state
        before, self._mark = self.state, found.mark
        self._reading = self._read(found)
        if self.state != before:
            self._log_state()
        return self.state

    def _read(self, found: KubeletFiles) -> KubeletReading | None:
        texts = KubeletTexts(found.texts, found.failures, found.command)
        is_empty = texts == KubeletTexts()  # then the directory exists for another purpose
        if not found.found or (is_empty and self._reading is None):
            return None
        return read_kubelet(texts, self._topology, self._reading)

    def _log_state(self) -> None:
        state = self.state
        if state is None:
            log.info("kubelet_removed")
            return
        log.info(
            "kubelet",
            cpu_manager=state.cpu_manager_policy,
            topology_manager=state.topology_manager_policy,
            containers=len(state.containers),
            pinned_cpus=str(state.pinned_cpus),
            reserved_cpus=str(state.reserved_cpus),
        )
        for note in state.notes:
            log.warning("kubelet_note", note=note)


class HostWatch:
    """Passes changes of the host's cpus to the cpu ledger.

    Args:
        kubelet: the watch that keeps the kubelet's state.
        cpus: the executor's cpus, including reserved cpus.
        update_conditions: a function that is called at every refresh, even without a change. Its
            keywords are `offline`, `kubelet_cpus`, `kubelet_policy`, `kubelet` and `notes`.
        slots: a function that returns the present slots.
        notes: warnings about this host from the start of the executor.
        root: the root of the file system, for tests.
    """

    def __init__(
        self,
        kubelet: KubeletWatch,
        cpus: CpuSet,
        *,
        update_conditions: UpdateConditions,
        slots: Callable[[], Iterable[Slot]],
        notes: tuple[str, ...] = (),
        root: Path = Path("/"),
    ) -> None:
        self.kubelet = kubelet
        self._cpus = cpus
        self._update_conditions = update_conditions
        self._slots = slots
        self._notes = notes
        self.root = root
        self._offline = EMPTY

    async def refresh(self) -> None:
        """Reads the cpus and the kubelet's state again, and passes both to the cpu ledger."""
        state = await self.kubelet.refresh()
        # This process itself runs on a cpu, so an empty result means that the file could not be
        # read.
        allowed = allowed_cpus(self.root)
        offline = self._cpus - allowed if allowed else self._offline
        if offline != self._offline:
            log.warning("cpus_changed", offline=str(offline), back=str(self._offline - offline))
            self._offline = offline
        conditions: dict[str, Any] = {"offline": offline, "notes": self._notes_on(offline, state)}
        conditions["kubelet_cpus"] = state.pinned_cpus & self._cpus if state else EMPTY
        conditions["kubelet_policy"] = state.policy if state else HostPolicy()
        conditions["kubelet"] = state
        await self._update_conditions(**conditions)

    def _notes_on(self, offline: CpuSet, state: KubeletState | None) -> tuple[str, ...]:
        """Returns notes on the kubelet, and on slots that have lost dedicated cpus."""
        named = []
        for slot in self._slots():
            own = slot.spec.assignment.cpus if slot.spec.assignment else EMPTY
            if not own:
                continue
            name = f"slot {slot.spec.allocation_id}"
            if lost := own & offline:
                named.append(f"{name} has dedicated cpus {lost}, which are no longer online")
            for each in state.containers if state else ():
                if lost := own & each.cpus:
                    whose = "/".join(filter(None, (each.pod_uid, each.container)))
                    named.append(
                        f"{name} has dedicated cpus {lost}, which the kubelet has assigned to "
                        f"{whose}"
                    )
        # The summary replaces the last note. So there are at most `NOTES_MAX` notes.
        if len(named) > NOTES_MAX:
            named[NOTES_MAX - 1 :] = [
                f"{len(named) - NOTES_MAX + 1} more cases of lost dedicated cpus"
            ]
        return (*self._notes, *(state.notes if state else ()), *named)
