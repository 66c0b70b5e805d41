"""Builds the protocol message with an administrator's settings for a host."""

from __future__ import annotations

from collections.abc import Mapping
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
from finegrain.errors import InvalidArgument
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
"""The settings whose value is a word, with the allowed words."""

NOT_FOR_HOSTS: tuple[StrEnum, ...] = (BindPolicy.DEFAULT, BindPolicy.CONSTRAINED_BURST)
"""The words that only requests may use."""


def policy_of(settings: Mapping[str, str | bool | None]) -> cpus_pb2.HostPolicy:
    """Returns a message with settings by name. See `policy_message`.

    Raises:
        InvalidArgument: a name or a value is not allowed.
    """
    words: dict[str, str | None] = {}
    strict = cpus = None
    for name, value in settings.items():
        if name == "reserved_strict" and (value is None or isinstance(value, bool)):
            strict = value
        elif name == "reserved_cpus" and not isinstance(value, bool):
            cpus = value
        elif name in WORDS and not isinstance(value, bool):
            words[name] = value
        else:
            expected = f"{', '.join(WORDS)} or reserved_cpus with a text, or reserved_strict"
            raise InvalidArgument(f"policy.{name}", value, expected)
    return policy_message(words, cpus, strict)


def policy_message(
    words: dict[str, str | None], reserved_cpus: str | None, reserved_strict: bool | None
) -> cpus_pb2.HostPolicy:
    """Returns a message with the settings to change. A setting that is None stays unchanged.

    Args:
        words: settings whose value is a word. The key is the name of the setting.
        reserved_cpus: reserved cpus as a cpu list; an empty value means no reserved cpus.
        reserved_strict: True if the shared pools must not contain the reserved cpus.

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
