"""What operators set for a host, as a message."""

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
"""Settings that are words, with their vocabularies."""

NOT_FOR_HOSTS: tuple[StrEnum, ...] = (BindPolicy.DEFAULT, BindPolicy.CONSTRAINED_BURST)
"""Words that only requests may use."""


def policy_message(
    words: dict[str, str | None], reserved_cpus: str | None, reserved_strict: bool | None
) -> cpus_pb2.HostPolicy:
    """Returns the settings to change; None leaves one as it is.

    Args:
        words: settings that are words, by name.
        reserved_cpus: cpu list; empty: no cpus.
        reserved_strict: whether shared pools leave those out, too.

    Raises:
        InvalidArgument: an unknown word, or no cpu list.
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
