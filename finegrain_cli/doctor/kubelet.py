"""Checks whether a kubelet on this host and an executor would use the same cpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain_cli.doctor.findings import Finding, ok, warn

if TYPE_CHECKING:
    from finegrain.cpuset import CpuSet
    from finegrain_cli.config.model import Settings
    from task_executor.host.kubelet import KubeletState

NAME = "kubelet"


def examine_kubelet(settings: Settings, root: Path = Path("/")) -> Iterator[Finding]:
    """Compares the cpus that the kubelet can dedicate to pods with the cpus of an executor's slots.

    Args:
        settings: the configuration of the executor.
        root: the root directory. Tests pass a fake directory.
    """
    from finegrain_cli.config.daemon_options import task_executor_options
    from task_executor.helper.kubelet import KubeletFiles
    from task_executor.host.detection import detect
    from task_executor.host.kubelet import KubeletTexts, read_kubelet
    from task_executor.service.host_plan import plan_host

    options = task_executor_options(settings)
    if options.kubelet_dir is None or not options.kubelet_dir.is_dir():
        yield ok(NAME, "none on this host")
        return
    config = str(options.kubelet_config) if options.kubelet_config else None
    found = KubeletFiles(str(options.kubelet_dir), config).read("")
    texts, failures = dict(found["texts"]), dict(found["failures"])
    # Warn about files that cannot be read. Compare the readable files nevertheless.
    for failure in failures.values():
        yield warn(NAME, failure, "run the doctor, and the executor's helper, as root")
    if not texts:
        if not failures:
            yield ok(NAME, f"no kubelet has written files in {options.kubelet_dir}")
        return
    topology = detect(root)
    state = read_kubelet(KubeletTexts(texts, {}, tuple(found["command"])), topology).state
    for note in state.notes:
        yield warn(NAME, note, "see the message; docs/operations.md, Beside a kubelet")
    plan = plan_host(options, topology)
    slot_cpus = plan.capacity.cpus if plan.capacity else plan.share.shared_cpus
    yield _apart(state, topology.online, slot_cpus)


def _apart(state: KubeletState, online: CpuSet, slot_cpus: CpuSet) -> Finding:
    """Checks that there is no cpu that both the kubelet and the executor could dedicate."""
    if state.cpu_manager_policy != "static":
        return ok(NAME, "it dedicates no cpus to containers (cpu manager policy none)")
    both = (online - state.reserved_cpus) & slot_cpus
    if not both:
        return ok(
            NAME,
            f"it dedicates cpus {online - state.reserved_cpus} to containers, and slots have "
            "others",
        )
    return warn(
        NAME,
        f"cpus {both} can be assigned both by the kubelet and to slots: a kubelet does not know "
        "about slots",
        "divide the cpus of the host: executor.cpus, and the same cpus in the kubelet's "
        f"reservedSystemCPUs; or executor.reserved_cpus = {both}",
    )
