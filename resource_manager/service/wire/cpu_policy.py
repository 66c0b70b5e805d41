"""Checks the cpu policy of a request: which policies, strengths and amounts can be combined.

The checks need only the request, and no data about hosts. `InvalidArgument` names the path of the
field, and a valid combination.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.errors import InvalidArgument
from finegrain.neighbors import Level
from finegrain.resources import ResourceProfile
from finegrain.rpc.wire_cpus import cpu_policy_from_proto
from finegrain.v1 import slots_pb2

MILLI_PER_CPU = 1000
PINNED = f"{QosClass.LSE} or {QosClass.LSR}"

_REQUIRED = "STRENGTH_REQUIRED"
_NEEDS_DEDICATED_CPUS = (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)
_DEMANDS_NOTHING = ("Default", "None")  # policies that every host satisfies


def request_policy(
    message: slots_pb2.SlotRequest, profile: ResourceProfile | None, field: str
) -> CpuPolicy:
    """Returns the cpu policy of a slot request.

    Args:
        message: the request.
        profile: the profile of the request; None: the request gets the default slot of its
            executor.
        field: path of the request, for errors.

    Raises:
        InvalidArgument: the name of a policy or class is unknown, or no host could satisfy the
            combination.
    """
    if not message.HasField("cpu_policy"):
        return PLAIN
    policy = cpu_policy_from_proto(message.cpu_policy, f"{field}.cpu_policy")
    _check_strengths(policy, f"{field}.cpu_policy")
    _check_neighbors(policy, f"{field}.cpu_policy")
    # Dedicated cpus are always whole cpus. So other rules apply to the amounts of such a slot.
    if policy.qos.is_pinned:
        _check_whole_cpus(policy.qos, profile, message.cpu_limit_milli, field)
        if policy.bind is BindPolicy.CONSTRAINED_BURST:
            raise _constrained_burst(policy.qos, f"{field}.cpu_policy")
        return policy
    if policy.qos is QosClass.BE:
        _check_best_effort(policy, profile, message.cpu_limit_milli, field)
    _check_shared_cpus(policy, f"{field}.cpu_policy")
    return policy


def _check_strengths(policy: CpuPolicy, field: str) -> None:
    """Checks that each required policy excludes some hosts."""
    for name, word, required in (
        ("bind", policy.bind, policy.bind_required),
        ("exclusive", policy.exclusive, policy.exclusive_required),
        ("numa", policy.numa, policy.numa_required),
    ):
        if required and word in _DEMANDS_NOTHING:
            expected = f"no strength, or another policy: {name} {word} requires nothing"
            raise InvalidArgument(f"{field}.{name}_strength", _REQUIRED, expected)
    # This policy excludes no host, so to require it would have no effect.
    if policy.numa_required and policy.numa is NumaPolicy.BEST_EFFORT:
        expected = (
            f"STRENGTH_PREFERRED with numa {policy.numa}, which excludes no host; or "
            f"numa {NumaPolicy.RESTRICTED} or {NumaPolicy.SINGLE_NUMA_NODE}"
        )
        raise InvalidArgument(f"{field}.numa_strength", _REQUIRED, expected)


def _check_neighbors(policy: CpuPolicy, field: str) -> None:
    """Checks that some host could meet all rules about neighbors."""
    for at, rule in enumerate(policy.neighbors):
        if rule.level is not Level.HOST and not policy.qos.is_pinned:
            expected = (
                f"level {Level.HOST} with qos {policy.qos}, or qos {PINNED}: below the host, only"
                " dedicated cpus have a place"
            )
            raise InvalidArgument(f"{field}.neighbors[{at}].level", str(rule.level), expected)
        opposite = replace(rule, apart=not rule.apart)
        if rule.required and opposite in policy.neighbors[:at]:
            expected = f"another rule than {opposite}, which requires the opposite"
            raise InvalidArgument(f"{field}.neighbors[{at}]", str(rule), expected)


def _check_whole_cpus(
    qos: QosClass, profile: ResourceProfile | None, limit: int, field: str
) -> None:
    shared = f"or cpu_policy.qos {QosClass.LS}"
    if profile is None:
        expected = (
            f"amounts with qos {qos}: cpu_milli in whole cpus (a multiple of {MILLI_PER_CPU}); "
            f"{shared}"
        )
        raise InvalidArgument(f"{field}.profile", "absent", expected)
    cpu_milli = profile.cpu_milli
    if cpu_milli < MILLI_PER_CPU or cpu_milli % MILLI_PER_CPU:
        expected = (
            f"whole cpus with qos {qos}, a multiple of {MILLI_PER_CPU}; {shared} for parts of a cpu"
        )
        raise InvalidArgument(f"{field}.profile.cpu_milli", cpu_milli, expected)
    if limit not in (0, cpu_milli):
        expected = (
            f"0 or cpu_milli ({cpu_milli}) with qos {qos}, which has dedicated cpus; {shared} to "
            "use idle cpus as well"
        )
        raise InvalidArgument(f"{field}.cpu_limit_milli", limit, expected)


def _check_best_effort(
    policy: CpuPolicy, profile: ResourceProfile | None, limit: int, field: str
) -> None:
    if policy.bind is BindPolicy.CONSTRAINED_BURST:
        raise _constrained_burst(policy.qos, f"{field}.cpu_policy")
    if profile is not None and limit not in (0, profile.cpu_milli):
        expected = (
            f"0 or cpu_milli ({profile.cpu_milli}) with qos {policy.qos}; or cpu_policy.qos "
            f"{QosClass.LS} to use more than the slot books"
        )
        raise InvalidArgument(f"{field}.cpu_limit_milli", limit, expected)


def _constrained_burst(qos: QosClass, field: str) -> InvalidArgument:
    expected = (
        f"another policy with qos {qos}: {BindPolicy.CONSTRAINED_BURST} is for qos {QosClass.LS} "
        "only, because it applies to the cpu limit"
    )
    return InvalidArgument(f"{field}.bind", str(BindPolicy.CONSTRAINED_BURST), expected)


def _check_shared_cpus(policy: CpuPolicy, field: str) -> None:
    """Checks a request without dedicated cpus. Such a request can prefer policies for dedicated
    cpus, which then have no effect. It must not require them.
    """
    about = (
        ("bind", policy.bind_required and policy.bind in _NEEDS_DEDICATED_CPUS, policy.bind),
        ("exclusive", policy.exclusive_required, policy.exclusive),
    )
    for name, required, word in about:
        if required:
            expected = (
                f"STRENGTH_PREFERRED with qos {policy.qos}, or qos {PINNED}: {word} applies only "
                "to dedicated cpus"
            )
            raise InvalidArgument(f"{field}.{name}_strength", _REQUIRED, expected)
