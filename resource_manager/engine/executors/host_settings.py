"""Checks and stores the cpu settings that administrators make at runtime, for one host or for the
cluster.

A setting applies to slots that are placed by the next event `Decide` or later. The setting is
stored with the executor's id, and stays stored after the executor is lost or deleted.
`hosts/allowed_cpus.py` merges the layers of settings, and `cpu_states.py` applies the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from finegrain.cpu_policy import (
    BindPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    HostPolicy,
    NumaPolicy,
)
from finegrain.cpuset import EMPTY
from finegrain.errors import InvalidArgument
from finegrain.mapping.stored import STORED
from resource_manager.engine.executors.cpu_states import adopt_settings
from resource_manager.engine.hosts.allowed_cpus import (
    CLUSTER,
    HostCpus,
    announced_by,
    cluster_policy,
    host_cpus,
    policy_for,
    unannounced,
)
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host
from resource_manager.engine.model.changes import HOST_SETTING_NUMBER
from resource_manager.engine.model.entities import NO_CPU_STATE, NOTHING_SET, HostSetting
from resource_manager.engine.model.events import HostPolicySet
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.state import State

SETTINGS = tuple(each.name for each in fields(HostPolicy))
"""The names of all settings."""

OF_ONE_HOST = ("reserved_cpus", "reserved_strict")
"""The names of the settings that only a single host can have, but not the cluster."""


def known_setting(
    hosts: Hosts, host_settings: dict[str, HostSetting], executor_id: str
) -> HostSetting | None:
    """Returns the settings of an executor or of the cluster. The result is None if no settings were
    ever made.

    Args:
        hosts: all hosts.
        host_settings: all settings, by executor id.
        executor_id: id of the executor, or `CLUSTER`.

    Raises:
        NotFound: the executor is unknown and has no settings.
    """
    setting = host_settings.get(executor_id)
    # Settings stay stored after their executor was deleted. So an unknown executor is an error only
    # if it has no settings.
    if setting is None and executor_id != CLUSTER:
        known_host(hosts, executor_id)
    return setting


@dataclass(frozen=True, slots=True)
class HostPolicyView:
    """The current settings of a host or of the cluster."""

    set: HostPolicy  # settings that administrators made at runtime
    effective: EffectivePolicy
    number: int  # version of `set`; 0 if no setting was ever made
    # version of `set` that the executor had applied when it sent its last report
    followed_number: int


def host_policy_view(
    hosts: Hosts, host_settings: dict[str, HostSetting], executor_id: str
) -> HostPolicyView:
    """Returns the settings of a host or of the cluster: the settings that administrators made, and
    the effective settings.

    Args:
        hosts: all hosts.
        host_settings: all settings, by executor id.
        executor_id: id of the host, or `CLUSTER`.

    Raises:
        NotFound: the executor is unknown and has no settings.
    """
    setting = known_setting(hosts, host_settings, executor_id)
    host = hosts.get(executor_id)
    seen = host.executor.cpu_state if host is not None else NO_CPU_STATE
    return HostPolicyView(
        set=setting.policy if setting is not None else NOTHING_SET,
        effective=policy_of(hosts, host_settings, executor_id),
        number=setting.number if setting is not None else 0,
        followed_number=seen.host_policy_number,
    )


def policy_of(
    hosts: Hosts, host_settings: dict[str, HostSetting], executor_id: str
) -> EffectivePolicy:
    """Returns the effective settings of a host.

    For the cluster, or for an unknown host, the result depends only on the settings of
    administrators.

    Args:
        hosts: all hosts.
        host_settings: all settings, by executor id.
        executor_id: id of the executor, or `CLUSTER`.
    """
    host = hosts.get(executor_id)
    if host is not None:
        return host.present.policy
    # `own` has only settings of a single host, and the cluster has no such settings.
    own = NOTHING_SET if executor_id == CLUSTER else policy_for(host_settings, executor_id)
    return unannounced(own, cluster_policy(host_settings, hosts.settings.cluster_policy))


def set_host_policy(state: State, event: HostPolicySet) -> HostSetting:
    """Sets or clears some settings of a host or of the cluster. The other settings do not change.

    Returns:
        The stored settings. If nothing changed, these are the old settings with their old number.

    Raises:
        NotFound: the executor is unknown and has no settings.
        InvalidArgument: a setting does not exist, the host does not have the cpus to reserve, or no
            cpus would be left for slots.
    """
    before = known_setting(state.hosts, state.host_settings, event.executor_id)
    # All checks must come before the first change, because a rejected event must not change the
    # state.
    wanted = checked_policy(state.hosts, state.host_settings, event)
    host = state.hosts.get(event.executor_id)
    cordons = before.cordons if before is not None else ()
    if before is not None and before.policy == wanted:  # a repetition gets no new number
        return before
    # The change is accepted: store it, then apply it to hosts.
    number = state.numbers.host_setting = state.numbers.host_setting + 1
    setting = HostSetting(event.executor_id, wanted, number, state.journal.at.time_ms, cordons)
    state.changes.counter(HOST_SETTING_NUMBER, number)
    # Requests that were infeasible are possibly feasible with the new settings.
    state.rejection_clock.restart(state.journal.now_ms)
    # If no settings are left, an unknown executor needs no row. A known executor needs a row with
    # the new number, because only a new number makes the executor clear its settings.
    if host is None and event.executor_id != CLUSTER and wanted == NOTHING_SET and not cordons:
        del state.host_settings[event.executor_id]
        state.changes.delete_host_setting(event.executor_id)
    else:
        state.host_settings[event.executor_id] = setting
        state.changes.host_setting(setting)
    state.journal.cluster_event(
        "host_policy_set", executor_id=event.executor_id, message=_described(event, wanted)
    )
    # Settings of the cluster apply to every host. If the event is about a single unknown host,
    # `host` is None.
    for each in state.hosts.values() if event.executor_id == CLUSTER else (host,):
        if each is not None:
            adopt_settings(state, each)
    if event.executor_id == CLUSTER:
        # Settings of the cluster also apply to executors that could be requested from providers.
        for seen in state.elastic.seen.values():
            seen.cluster_policy = cluster_policy(state.host_settings, state.settings.cluster_policy)
            seen.settle_cpus()
    return setting


def checked_policy(
    hosts: Hosts, host_settings: dict[str, HostSetting], event: HostPolicySet
) -> HostPolicy:
    """Returns the settings that administrators would have made after the event. Changes nothing.

    Args:
        hosts: all hosts.
        host_settings: all settings, by executor id.
        event: the event, which concerns a host or the cluster.

    Raises:
        NotFound, InvalidArgument: see `set_host_policy`.
    """
    before = known_setting(hosts, host_settings, event.executor_id)
    wanted = _wanted(before.policy if before is not None else NOTHING_SET, event)
    host = hosts.get(event.executor_id)
    if event.executor_id == CLUSTER:
        _refuse_of_one_host(event)
    elif host is not None:
        _check_cpus(host, wanted)
    return wanted


def policy_after(
    host: Host, executor_id: str, wanted: HostPolicy, configured: HostPolicy
) -> HostCpus:
    """Returns the settings and cpus that would apply on a host if administrators made some
    settings.

    Args:
        host: the host.
        executor_id: the id of the host, or `CLUSTER` if the settings are for the whole cluster.
        wanted: the settings.
        configured: the settings of the cluster in the configuration of the resource manager.
    """
    own, cluster = wanted, host.cluster_policy
    if executor_id == CLUSTER:
        made = {CLUSTER: HostSetting(CLUSTER, wanted, 0)}
        own, cluster = host.operator_policy, cluster_policy(made, configured)
    return host_cpus(host.executor.registration, host.executor.cpu_state, own, cluster)


def _wanted(before: HostPolicy, event: HostPolicySet) -> HostPolicy:
    """Returns the policy with the changes of the event. Raises InvalidArgument if a change is not
    allowed.
    """
    given = {name: value for name in SETTINGS if (value := getattr(event.policy, name)) is not None}
    for name in event.clear:
        if name not in SETTINGS:
            raise InvalidArgument("clear", name, f"one of {', '.join(SETTINGS)}")
        if name in given:
            raise InvalidArgument("clear", name, f"a setting that policy.{name} does not set")
    # A request with DEFAULT gets the value of this setting, so the setting itself cannot be
    # DEFAULT.
    refused = (
        ("alignment", NumaPolicy.DEFAULT, _words(NumaPolicy, NumaPolicy.DEFAULT)),
        ("default_bind", BindPolicy.DEFAULT, _DEFAULT_BINDS),
        ("default_bind", BindPolicy.CONSTRAINED_BURST, _DEFAULT_BINDS),
        (
            "default_exclusive",
            ExclusivePolicy.DEFAULT,
            _words(ExclusivePolicy, ExclusivePolicy.DEFAULT),
        ),
    )
    for name, word, expected in refused:
        if given.get(name) == word:
            raise InvalidArgument(f"policy.{name}", str(word), f"one of {expected}")
    return replace(before, **given, **dict.fromkeys(event.clear))


def _words(words: Iterable[str], *without: str) -> str:
    return ", ".join(str(word) for word in words if word not in without)


_DEFAULT_BINDS = _words(BindPolicy, BindPolicy.DEFAULT, BindPolicy.CONSTRAINED_BURST)


def _refuse_of_one_host(event: HostPolicySet) -> None:
    for name in OF_ONE_HOST:
        if (value := getattr(event.policy, name)) is not None:
            expected = "no value for the cluster: cpus are reserved host by host"
            raise InvalidArgument(f"policy.{name}", str(value), expected)


def _check_cpus(host: Host, wanted: HostPolicy) -> None:
    """Checks that the host has the cpus to reserve, and that slots keep at least one cpu."""
    reserved = wanted.reserved_cpus or EMPTY
    if not reserved:
        return
    announced = announced_by(host.executor.registration)
    there = announced.slot_cpus | announced.reserved_cpus
    if missing := reserved - there:
        expected = f"cpus that executor {host.host_id} has ({there or 'none are known'})"
        raise InvalidArgument("policy.reserved_cpus", str(reserved), f"{expected}, not {missing}")
    executor = host.executor
    found = host_cpus(executor.registration, executor.cpu_state, wanted, host.cluster_policy)
    # `taken` also contains offline cpus, and cpus that a kubelet has allocated.
    if not announced.slot_cpus - found.taken:
        others = found.taken - reserved
        beside = f"; {others} are not available to slots either" if others else ""
        expected = f"cpus that leave slots at least one of {announced.slot_cpus}{beside}"
        raise InvalidArgument("policy.reserved_cpus", str(reserved), expected)


def _described(event: HostPolicySet, policy: HostPolicy) -> str:
    """Returns the settings and the names of the cleared settings as text for people."""
    values = STORED.to_json(policy)
    whole = ", ".join(f"{name} {_text(value)}" for name, value in values.items()) or "nothing"
    cleared = f"; no longer {', '.join(event.clear)}" if event.clear else ""
    return f"{event.executor_id or 'the cluster'}: {whole}{cleared}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or "none"
