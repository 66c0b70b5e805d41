"""Turns what the RM says about settings of hosts into the values of `types/host_policy.py`, and
what is to be set into what it is told.
"""

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
from finegrain.rpc.wire_cpus import host_policy_from_proto, host_policy_to_proto
from finegrain.v1 import cluster_pb2, cpus_pb2
from finegrain_client.decoding.cpus import known
from finegrain_client.decoding.topology import settings
from finegrain_client.types import host_policy as types

WORDS: dict[str, type[StrEnum]] = {
    "bind": HostBindPolicy,
    "numa_strategy": NumaStrategy,
    "alignment": NumaPolicy,
    "default_bind": BindPolicy,
    "default_exclusive": ExclusivePolicy,
}
"""Settings that are words, with their vocabularies."""

NOT_FOR_HOSTS: tuple[StrEnum, ...] = (BindPolicy.DEFAULT, BindPolicy.CONSTRAINED_BURST)
"""Words that say something of requests only."""


def host_policy(executor_id: str, message: cluster_pb2.GetHostPolicyResponse) -> types.HostPolicy:
    """The settings of a host, or of the cluster."""
    return types.HostPolicy(
        executor_id=executor_id,
        set=_layer(message.set),
        effective=settings(message.effective),
        number=message.number,
        followed_number=message.followed_number,
    )


def changed_policy(
    executor_id: str, message: cluster_pb2.SetHostPolicyResponse
) -> types.HostPolicy:
    """The same, as it is after a change."""
    return types.HostPolicy(
        executor_id=executor_id,
        set=_layer(message.set),
        effective=settings(message.effective),
        number=message.number,
        followed_number=None,
    )


def policy_message(
    words: dict[str, str | None], reserved_cpus: str | None, reserved_strict: bool | None
) -> cpus_pb2.HostPolicy:
    """What is to be set; None: it stays as it is.

    Raises:
        InvalidArgument: a word that nobody knows, or no cpu list.
    """
    said: dict[str, str] = {
        name: read_word(name, word, WORDS[name], without=NOT_FOR_HOSTS)
        for name, word in words.items()
        if word is not None
    }
    if reserved_cpus is not None:
        said["reserved_cpus"] = str(CpuSet.parse(reserved_cpus, "reserved_cpus"))
    return host_policy_to_proto(HostPolicy.from_dict(said | {"reserved_strict": reserved_strict}))


def _layer(message: cpus_pb2.HostPolicy) -> types.HostLayer:
    policy = known(host_policy_from_proto, message, "set")
    words = {name: None if (word := getattr(policy, name)) is None else str(word) for name in WORDS}
    cpus = policy.reserved_cpus
    return types.HostLayer(
        **words,
        reserved_cpus=None if cpus is None else str(cpus),
        reserved_strict=policy.reserved_strict,
    )
