"""Turns what the RM says about cpus and NUMA nodes of requests and slots into the values of
`types/cpus.py`.

Decides that a word which this client does not know is a newer server's. Refuses to guess it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

from finegrain.errors import FailedPrecondition, InvalidArgument, Reason
from finegrain.rpc.wire_cpus import assignment_from_proto, cpu_policy_from_proto
from finegrain.v1 import cpus_pb2
from finegrain_client.types import cpus as types

MessageT = TypeVar("MessageT")
T = TypeVar("T")


def cpu_wish(message: cpus_pb2.CpuPolicy) -> types.CpuWish:
    """What a request says about its cpus."""
    policy = known(cpu_policy_from_proto, message, "cpu_policy")
    return types.CpuWish(**{each.name: getattr(policy, each.name) for each in fields(policy)})


def slot_cpus(message: cpus_pb2.CpuAssignment) -> types.SlotCpus:
    """The cpus, NUMA nodes and shared pools of a slot."""
    found = known(assignment_from_proto, message, "assignment")
    return types.SlotCpus(
        qos=found.qos,
        cpus=str(found.cpus),
        bind=found.bind,
        exclusive=found.exclusive,
        numa=tuple(types.SlotNodeShare(each.node, dict(each.amounts)) for each in found.numa),
        memory_nodes=str(found.memory_nodes),
        pools=tuple(types.SlotPool(*pool) for pool in found.pools),
        notes=found.notes,
    )


def known(read: Callable[[MessageT, str], T], message: MessageT, field: str) -> T:
    """What a server says.

    Raises:
        FailedPrecondition: VERSION_MISMATCH, something that this client does not know.
    """
    try:
        return read(message, field)
    except InvalidArgument as error:
        raise FailedPrecondition(
            f"the server said something that this client does not know: {error.message}; bring "
            "client and server to neighbouring versions",
            reason=Reason.VERSION_MISMATCH,
        ) from None
