"""Builds the protocol message with an operator's settings of a host."""

from __future__ import annotations

from enum import StrEnum

from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
)
from finegrain.cpu_words import read_word
from finegrain.cpuset import CpuSet
from finegrain.mapping.stored import STORED
from finegrain.rpc.wire_cpus import host_policy_to_proto
from finegrain.v1 import cpus_pb2

WORDS: dict[str, type[StrEnum]] = {
    "bind": HostBindPolicy,
    "numa_strategy": NumaStrategy,
    "alignment": NumaPolicy,
    "default_bind": BindPolicy,
    "default_exclusive": ExclusivePolicy,
}
"""Settings whose value is a word, with the allowed words."""

NOT_FOR_HOSTS: tuple[StrEnum, ...] = (BindPolicy.DEFAULT, BindPolicy.CONSTRAINED_BURST)
"""Words that only requests may use."""


def policy_message(
    words: dict[str, str | None], reserved_cpus: str | None, reserved_strict: bool | None
) -> cpus_pb2.HostPolicy:
    """Returns a message with the settings to change; a setting that is None stays as it is.

    Args:
        words: settings whose value is a word, by name.
        reserved_cpus: reserved cpus as a cpu list; empty: none.
        reserved_strict: whether slots of the shared pools may not use the reserved cpus either.

    Raises:
        InvalidArgument: a word is unknown, or `reserved_cpus` is not a cpu list.
    """
    settings: dict[str, str] = {
        name: read_word(name, word, WORDS[name], without=NOT_FOR_HOSTS)
        for name, word in words.items()
        if word is not None
    }
    if reserved_cpus is not None:
        settings["reserved_cpus"] = str(CpuSet.parse(reserved_cpus, "reserved_cpus"))
    return host_policy_to_proto(
        STORED.from_json(HostPolicy, settings | {"reserved_strict": reserved_strict})
    )
