"""Handles cordons of devices. With a cordon, an administrator stops new work on one device. When
the cordon ends, new work is allowed again.

A cordon is stored with the settings of the host, by type and UUID of the device. So the cordon
still applies after a restart of the resource manager, and while the executor is lost. The cordon
also applies if the device returns with another minor number. A cordon does not end the slots on the
device.
"""

from __future__ import annotations

from dataclasses import replace

from finegrain.devices.device import Device
from finegrain.errors import NotFound, Reason
from resource_manager.engine.executors.cpu_states import adopt_settings
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host
from resource_manager.engine.model.entities import (
    NOTHING_SET,
    Cordon,
    HostSetting,
)
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned
from resource_manager.engine.state import State


def cordon_device(state: State, event: DeviceCordoned) -> Cordon:
    """Cordons a device. The device then gets no new slots. If the device is cordoned already, the
    new cordon replaces the old cordon with its reason.

    Raises:
        NotFound: there is no such executor, or the executor has no such device.
    """
    host = known_host(state.hosts, event.executor_id)
    device = known_device(host, event.device)
    cordon = Cordon(device.type, device.uuid, device.minor, event.reason, state.journal.at.time_ms)
    others = _others(host, device.type, device.uuid)
    _store(state, host, (*others, cordon))
    state.journal.cluster_event(
        "device_cordoned",
        executor_id=host.host_id,
        reason=event.reason,
        message=f"{host.host_id}/{device.name} ({device.uuid}) gets no new slots",
    )
    return cordon


def uncordon_device(state: State, event: DeviceUncordoned) -> None:
    """Ends the cordon of a device. The device can then get new slots again. The function does
    nothing if the device is not cordoned.

    Raises:
        NotFound: there is no such executor, or the executor has no such device and no cordon of
            such a device.
    """
    host = known_host(state.hosts, event.executor_id)
    # A device that has vanished can be uncordoned, too.
    cordon = next((each for each in host.cordons if event.device in _names_of(each)), None)
    if cordon is None:
        device = known_device(host, event.device)
        type_, uuid = device.type, device.uuid
    else:
        type_, uuid = cordon.type, cordon.uuid
    others = _others(host, type_, uuid)
    if len(others) == len(host.cordons):
        return
    _store(state, host, others)
    state.journal.cluster_event(
        "device_uncordoned",
        executor_id=host.host_id,
        message=f"{host.host_id}/{event.device} gets new slots again",
    )


def known_device(host: Host, name: str) -> Device:
    """Returns a device of a host by its name ("gpu3") or UUID.

    Raises:
        NotFound: the host has no such device.
    """
    devices = host.cpus.devices.layout.devices if host.cpus is not None else ()
    for device in devices:
        if name in (device.name, device.uuid):
            return device
    names = ", ".join(each.name for each in devices) or "no devices that slots can have"
    raise NotFound(
        f"executor {host.host_id} has no device {name}; it has {names}",
        reason=Reason.EXECUTOR_UNKNOWN,
        details={"executor_id": host.host_id, "device": name},
    )


def _names_of(cordon: Cordon) -> tuple[str, str]:
    return f"{cordon.type}{cordon.minor}", cordon.uuid


def _others(host: Host, type_: str, uuid: str) -> tuple[Cordon, ...]:
    return tuple(each for each in host.cordons if (each.type, each.uuid) != (type_, uuid))


def _store(state: State, host: Host, cordons: tuple[Cordon, ...]) -> None:
    before = state.host_settings.get(host.host_id)
    if before is None:
        before = HostSetting(host.host_id, NOTHING_SET, 0, state.journal.at.time_ms)
    # The number of the settings does not change, because only changes that the executor must apply
    # increase the number.
    setting = replace(before, cordons=cordons)
    state.host_settings[host.host_id] = setting
    state.changes.host_setting(setting)
    adopt_settings(state, host)
