"""Computes the state of a kubelet from the texts of its files.

If a part cannot be read, its last known content is used. Otherwise the executor could read a file
while the kubelet replaces it, and offer a kubelet's cpus to slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import HostTopology, printable
from task_executor.host.kubelet.checkpoints import (
    CpuCheckpoint,
    Damaged,
    MemoryCheckpoint,
    parse_cpu_checkpoint,
    parse_device_checkpoint,
    parse_memory_checkpoint,
)
from task_executor.host.kubelet.configuration import KubeletConfiguration, read_configuration
from task_executor.host.kubelet.state import (
    STATIC,
    KubeletContainer,
    KubeletDevices,
    KubeletState,
)

CPU_STATE: Final = "cpu_manager_state"
MEMORY_STATE: Final = "memory_manager_state"
DEVICE_STATE: Final = "device-plugins/kubelet_internal_checkpoint"
CONFIG: Final = "config"
NOTES_MAX: Final = 10
NOTE_LENGTH_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class KubeletTexts:
    """The texts of a kubelet's files, from one reading.

    Attributes:
        texts: the texts of "cpu_manager_state", "memory_manager_state",
            "device-plugins/kubelet_internal_checkpoint" and "config". Drop-in files follow in their
            order, as "config/NAME".
        failures: the files that exist but could not be read. The key is the name of the file, and
            the value is the reason.
        command: the arguments of the kubelet's process.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()


_NOTHING_SAID: Final = KubeletConfiguration()


@dataclass(frozen=True, slots=True)
class _Known:
    """The last content of each part that could be read."""

    cpus: CpuCheckpoint | None = None
    memory: MemoryCheckpoint | None = None
    configuration: KubeletConfiguration = _NOTHING_SAID
    devices: tuple[KubeletDevices, ...] = ()


@dataclass(frozen=True, slots=True)
class KubeletReading:
    """The state of a kubelet, and the last known parts, which the next reading uses if a file
    cannot be read.
    """

    state: KubeletState
    known: _Known


def read_kubelet(
    found: KubeletTexts, topology: HostTopology, previous: KubeletReading | None = None
) -> KubeletReading:
    """Returns the present state of a kubelet. The content of the files never causes an error.

    Args:
        found: the texts that were read.
        topology: the topology of the host.
        previous: the result of the previous reading; None at the first reading.
    """
    notes: list[str] = []
    before = previous.known if previous else _Known()
    known = _Known(
        cpus=_cpu_checkpoint(found, before, notes),
        memory=_memory_checkpoint(found, before, notes),
        configuration=_configuration(found, before, notes),
        devices=_devices(found, before, notes),
    )
    state = _state(known, topology, notes)
    kept = tuple(printable(note)[:NOTE_LENGTH_MAX] for note in notes[:NOTES_MAX])
    return KubeletReading(replace(state, notes=kept), known)


def _cpu_checkpoint(found: KubeletTexts, before: _Known, notes: list[str]) -> CpuCheckpoint | None:
    if CPU_STATE in found.texts:
        try:
            return parse_cpu_checkpoint(found.texts[CPU_STATE])
        except Damaged as error:
            why = f"{CPU_STATE} is damaged: {error}"
    elif CPU_STATE in found.failures:
        why = f"{found.failures[CPU_STATE]}"
    # If the file has never existed, this kubelet has assigned no cpus.
    elif before.cpus is None:
        return None
    else:
        why = f"{CPU_STATE} no longer exists"
    unknown = "the cpus that it has assigned are unknown; set cpus to the cpus that slots may use"
    notes.append(f"the kubelet's {why}; {'its last content is used' if before.cpus else unknown}")
    return before.cpus


def _memory_checkpoint(
    found: KubeletTexts, before: _Known, notes: list[str]
) -> MemoryCheckpoint | None:
    if MEMORY_STATE in found.texts:
        try:
            return parse_memory_checkpoint(found.texts[MEMORY_STATE])
        except Damaged as error:
            notes.append(f"the kubelet's {MEMORY_STATE} is damaged: {error}")
            return before.memory
    if MEMORY_STATE in found.failures:
        notes.append(f"the kubelet's {found.failures[MEMORY_STATE]}")
        return before.memory
    return None  # older kubelets have no such file and allocate no memory


def _devices(found: KubeletTexts, before: _Known, notes: list[str]) -> tuple[KubeletDevices, ...]:
    if DEVICE_STATE in found.texts:
        try:
            return parse_device_checkpoint(found.texts[DEVICE_STATE])
        except Damaged as error:
            notes.append(f"the kubelet's {DEVICE_STATE} is damaged: {error}")
            return before.devices
    if DEVICE_STATE in found.failures:
        notes.append(f"the kubelet's {found.failures[DEVICE_STATE]}")
        return before.devices
    return ()  # a kubelet without plug-ins for devices does not have this file


def _configuration(found: KubeletTexts, before: _Known, notes: list[str]) -> KubeletConfiguration:
    if CONFIG in found.failures:
        notes.append(f"the kubelet's configuration: {found.failures[CONFIG]}")
        # Use the last known settings, because settings from flags alone would be incomplete.
        if before.configuration != _NOTHING_SAID:
            return before.configuration
    documents = [
        (name, text)
        for name, text in found.texts.items()
        if name == CONFIG or name.startswith(f"{CONFIG}/")
    ]
    read = read_configuration(documents, found.command)
    notes += read.notes
    return read


def _state(known: _Known, topology: HostTopology, notes: list[str]) -> KubeletState:
    configured, cpus, memory = known.configuration, known.cpus, known.memory
    # The configured policy has priority, because the checkpoint can have an older policy until the
    # kubelet restarts.
    policy = configured.cpu_manager_policy or (cpus.policy if cpus else "")
    if cpus and policy != cpus.policy:
        notes.append(
            f"the kubelet is configured for cpu manager policy {policy}, but its state has policy "
            f"{cpus.policy}, so the kubelet will not start"
        )
    reserved = _reserved(configured, policy, topology, notes)
    containers = _containers(cpus, memory, topology, reserved, notes)
    return KubeletState(
        cpu_manager_policy=policy,
        cpu_manager_options=configured.cpu_manager_options,
        topology_manager_policy=configured.topology_manager_policy or "",
        topology_manager_scope=configured.topology_manager_scope or "",
        memory_manager_policy=configured.memory_manager_policy or (memory.policy if memory else ""),
        reserved_cpus=reserved,
        containers=containers,
        given=_listed(memory.given if memory else {}),
        # The memory manager's numbers have priority, because they show the real reservation.
        devices=known.devices,
        kept=_listed(memory.kept) if memory and memory.kept else configured.reserved_memory,
    )


def _reserved(
    configured: KubeletConfiguration, policy: str, topology: HostTopology, notes: list[str]
) -> CpuSet:
    """Returns the reserved cpus.

    Named cpus are reserved under every policy. Amounts reserve cpus only under the static policy.
    """
    if configured.reserved_cpus is not None:
        return configured.reserved_cpus & topology.online
    if policy != STATIC:
        return EMPTY
    # A kubelet reserves whole cpus, so it rounds up.
    count = -(-configured.reserved_cpu_milli // 1000)
    if not count:
        notes.append(
            "the kubelet assigns cpus (policy static), but its reserved cpus, without which it "
            "does not start, are unknown; set kubelet_config to its configuration file"
        )
        return EMPTY
    return packed(count, topology)


def packed(count: int, topology: HostTopology) -> CpuSet:
    """Returns the cpus that a kubelet reserves for an amount of cpus.

    Whole cores of the smallest package come first, beginning with cores with few threads. Then
    single threads follow. If all packages and cores have the same size, a kubelet chooses exactly
    these cpus. Otherwise the kubelet possibly chooses other cpus.

    Args:
        count: the number of cpus.
        topology: the topology of the host.
    """
    sizes = [len(package.cpus & topology.online) for package in topology.packages] or [0]
    cores = sorted(
        (core for core in topology.cores if core.cpus),
        key=lambda c: (
            sizes[c.package] if c.package < len(sizes) else 0,
            c.package,
            len(c.cpus),
            c.cpus.min(),
        ),
    )
    taken = EMPTY
    for core in cores:
        if len(core.cpus) <= count - len(taken):
            taken |= core.cpus
    left = (cpu for core in cores for cpu in core.cpus if cpu not in taken)
    return taken | CpuSet(cpu for cpu, _ in zip(left, range(count - len(taken)), strict=False))


def _containers(
    cpus: CpuCheckpoint | None,
    memory: MemoryCheckpoint | None,
    topology: HostTopology,
    reserved: CpuSet,
    notes: list[str],
) -> tuple[KubeletContainer, ...]:
    pinned = dict(cpus.cpus) if cpus else {}
    if cpus and pinned and cpus.policy != STATIC:
        notes.append(f"the kubelet's {CPU_STATE} assigns cpus under policy {cpus.policy}")
    held = dict(memory.containers) if memory else {}
    for pod in [pod for pod, container in held if not container]:
        # If memory is given to a whole pod, its containers use this memory. So do not count the
        # containers again.
        held = {key: sizes for key, sizes in held.items() if key[0] != pod or not key[1]}
    keys = {*pinned, *held}
    containers = tuple(
        KubeletContainer(
            pod_uid=pod_uid,
            container=container,
            cpus=pinned.get((pod_uid, container), EMPTY),
            memory_bytes=tuple(sorted(held.get((pod_uid, container), {}).items())),
        )
        for pod_uid, container in sorted(keys)
    )
    _judge(containers, topology, reserved, notes)
    return containers


def _judge(
    containers: tuple[KubeletContainer, ...],
    topology: HostTopology,
    reserved: CpuSet,
    notes: list[str],
) -> None:
    """Adds a note for each contradiction in the kubelet's files. The executor uses the content in
    spite of contradictions.
    """
    given = EMPTY
    for each in containers:
        given |= each.cpus
    if missing := given - topology.online - topology.offline:
        notes.append(f"the kubelet has assigned cpus {missing}, which this host does not have")
    if both := given & reserved:
        notes.append(f"the kubelet has assigned cpus {both}, which it also reserves")


def _listed(sizes: Mapping[tuple[int, str], int]) -> tuple[tuple[int, str, int], ...]:
    return tuple(sorted((node, resource, size) for (node, resource), size in sizes.items()))
