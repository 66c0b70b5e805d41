"""Computes from the options which cpus can be dedicated to slots, and which cpus are shared.

The options come from the configuration file. An administrator or a kubelet can add settings later,
while the executor runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from finegrain.capacity import Capacity
from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
)
from finegrain.cpu_pools import cores_of, places_of
from finegrain.cpu_words import read_word
from finegrain.cpuset import CpuSet
from finegrain.topology import HostTopology
from task_executor.engine.cpu_ledger import HostCpus
from task_executor.options import TaskExecutorOptions

Word = TypeVar("Word", bound=StrEnum)


def host_cpus(options: TaskExecutorOptions, topology: HostTopology, capacity: Capacity) -> HostCpus:
    """Returns the cpus of the executor, in the form that the executor sends to the RM.

    No slot gets a reserved cpu as a dedicated cpu. But slots in the shared pools may run on
    reserved cpus. There are two exceptions: `reserved_cpus_strict` is set, or the cpus are isolated
    from the kernel's scheduler.

    Args:
        options: the executor's options.
        topology: the detected topology of the host.
        capacity: the capacity plan, with the cpus that the executor manages.

    Raises:
        InvalidArgument: an option names an unknown policy. The error names the option.
    """
    reserved = capacity.reserved_cpus
    return HostCpus(
        slot_cpus=capacity.cpus,
        reserved=reserved,
        isolated=capacity.isolated_cpus | (reserved & topology.isolated),
        pools=places_of(cores_of(topology), capacity.cpus | reserved),
        memory_nodes=topology.allowed_nodes,
        policy=_policy(options, reserved),
    )


def _policy(options: TaskExecutorOptions, reserved: CpuSet) -> HostPolicy:
    """Returns the configured host policy. A field is not set if its option is empty."""
    return HostPolicy(
        bind=_word("bind_policy", options.bind_policy, HostBindPolicy),
        numa_strategy=_word("numa_strategy", options.numa_strategy, NumaStrategy),
        alignment=_word(
            "alignment_policy", options.alignment_policy, NumaPolicy, NumaPolicy.DEFAULT
        ),
        # Use None instead of an empty set, so that a kubelet or an administrator can reserve cpus.
        reserved_cpus=reserved or None,
        reserved_strict=options.reserved_cpus_strict if reserved else None,
        default_bind=_word(
            "default_bind_policy",
            options.default_bind_policy,
            BindPolicy,
            BindPolicy.DEFAULT,
            BindPolicy.CONSTRAINED_BURST,
        ),
        default_exclusive=_word(
            "default_exclusive_policy",
            options.default_exclusive_policy,
            ExclusivePolicy,
            ExclusivePolicy.DEFAULT,
        ),
    )


def _word(field: str, text: str, kind: type[Word], *without: Word) -> Word | None:
    return read_word(field, text, kind, without=without) if text else None
