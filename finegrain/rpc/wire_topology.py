"""Converts a host's topology and isolation reports from and to messages.

The message contains only the part of the detected topology that planning and people need. The
resource manager stores this part as JSON data (`topology_from_proto`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from finegrain.errors import InvalidArgument
from finegrain.ids import check_text
from finegrain.rpc.known import Known
from finegrain.rpc.mapping.writer import Writer
from finegrain.rpc.wire import check_cpu_list
from finegrain.rpc.wire_devices import (
    check_count,
    device_isolation_from_proto,
    devices_from_topology,
)
from finegrain.topology import HostTopology
from finegrain.v1 import resources_pb2
from finegrain.values.bounds import CORES_MAX, NUMA_NODES_MAX
from finegrain.values.isolation import Isolation

_TEXT_LENGTH_MAX = 1_000
_NOTES_MAX = 100
_CORE_LENGTH_MAX = 100  # maximum length of the cpu list of one core, such as "0-1,64-65"
_PORT_MAX = 65_535
# maximum number of cached isolations: most slots have one of few isolations
_ISOLATIONS_KNOWN_MAX = 1_024

_ISOLATION_WORDS = tuple(each.name for each in fields(Isolation) if each.type == "str")

_write = Writer((), converters={})

_isolations: Known[Isolation] = Known(_ISOLATIONS_KNOWN_MAX)


def topology_to_proto(topology: HostTopology) -> resources_pb2.HostTopology:
    """Writes the topology that detection found, without devices (`devices_to_topology`)."""
    return resources_pb2.HostTopology(
        online_cpus=str(topology.online),
        allowed_cpus=str(topology.allowed),
        isolated_cpus=str(topology.isolated),
        cores=[
            resources_pb2.Core(
                cpus=str(core.cpus),
                package_index=core.package,
                numa_node_id=_known(core.numa_node),
                l3_index=_known(core.l3_group),
                kind="" if core.kind is None else topology.cpu_kinds[core.kind].name,
            )
            for core in topology.cores
        ],
        numa_nodes=[
            resources_pb2.NumaNode(
                numa_node_id=node.id,
                cpus=str(node.cpus),
                memory_bytes=node.normal_memory_bytes or 0,
                distances=node.distances,
            )
            for node in topology.numa_nodes
        ],
        memory_bytes=topology.memory_total_bytes or 0,
        # The resource manager rejects a registration with more warnings.
        warnings=topology.warnings[:_NOTES_MAX],
    )


def topology_from_proto(message: resources_pb2.HostTopology, field: str) -> dict[str, object]:
    """Checks the message and returns it as JSON data.

    Raises:
        InvalidArgument: a cpu list is malformed, a text has control characters, or an amount is
            negative.
    """
    for name in ("online_cpus", "allowed_cpus", "isolated_cpus"):
        check_cpu_list(getattr(message, name), f"{field}.{name}")
    _check_count(message.cores, CORES_MAX, f"{field}.cores")
    _check_count(message.numa_nodes, NUMA_NODES_MAX, f"{field}.numa_nodes")
    for index, core in enumerate(message.cores):
        check_cpu_list(core.cpus, f"{field}.cores[{index}].cpus", longest=_CORE_LENGTH_MAX)
        _check_texts(core, ("kind",), f"{field}.cores[{index}]")
    for index, node in enumerate(message.numa_nodes):
        check_cpu_list(node.cpus, f"{field}.numa_nodes[{index}].cpus")
        _check_count(node.distances, NUMA_NODES_MAX, f"{field}.numa_nodes[{index}].distances")
        _check_not_negative(node.memory_bytes, f"{field}.numa_nodes[{index}].memory_bytes")
    devices_from_topology(message, field)
    for index, device in enumerate(message.devices):
        where = f"{field}.devices[{index}]"
        _check_texts(device, ("pci_address", "parent_uuid", "unavailable_reason"), where)
        check_cpu_list(device.local_cpus, f"{where}.local_cpus")
        _check_not_negative(device.memory_bytes, f"{where}.memory_bytes")
    _check_not_negative(message.memory_bytes, f"{field}.memory_bytes")
    _check_lines(message.warnings, f"{field}.warnings")
    # Use the protocol's field names as keys, not camelCase.
    return MessageToDict(message, preserving_proto_field_name=True)


def topology_dict_to_proto(data: Mapping[str, object]) -> resources_pb2.HostTopology:
    """Reads the data that `topology_from_proto` returned. Ignores fields of newer versions."""
    return ParseDict(dict(data), resources_pb2.HostTopology(), ignore_unknown_fields=True)


@lru_cache(_ISOLATIONS_KNOWN_MAX)
def isolation_to_proto(isolation: Isolation) -> resources_pb2.IsolationReport:
    """Writes an isolation report. The returned message is shared: copy it before changing it."""
    return _write(resources_pb2.IsolationReport, isolation)


def isolation_from_proto(message: resources_pb2.IsolationReport, field: str) -> Isolation:
    """Reads an isolation report.

    Raises:
        InvalidArgument: a text is too long or has control characters, or a port number is not
            valid.
    """
    data = message.SerializeToString()
    isolation = _isolations.get(data)
    if isolation is None:
        isolation = _checked_isolation(message, field)
        _isolations.keep(data, isolation)
    return isolation


def _checked_isolation(message: resources_pb2.IsolationReport, field: str) -> Isolation:
    _check_texts(message, _ISOLATION_WORDS, field)
    _check_lines(message.notes, f"{field}.notes")
    words = {name: getattr(message, name) for name in _ISOLATION_WORDS}
    check_count(f"{field}.device_levels", message.device_levels)
    check_count(f"{field}.ports", message.ports, _PORT_MAX)
    levels = tuple(
        device_isolation_from_proto(each, f"{field}.device_levels[{at}]")
        for at, each in enumerate(message.device_levels)
    )
    for port in message.ports:
        if not 1 <= port <= _PORT_MAX:
            raise InvalidArgument(f"{field}.ports", port, f"1 to {_PORT_MAX}")
    return Isolation(
        **words,
        notes=tuple(message.notes),
        device_levels=levels,
        ports=tuple(message.ports),
    )


def _known(number: int | None) -> int:
    return -1 if number is None else number


def _check_texts(message: Any, names: tuple[str, ...], field: str) -> None:
    for name in names:
        check_text(
            f"{field}.{name}", getattr(message, name), longest=_TEXT_LENGTH_MAX, empty_ok=True
        )


def _check_count(items: Any, most: int, field: str) -> None:
    if len(items) > most:
        raise InvalidArgument(field, f"{len(items)} items", f"at most {most}")


def _check_lines(lines: Any, field: str) -> None:
    if len(lines) > _NOTES_MAX:
        raise InvalidArgument(field, f"{len(lines)} lines", f"at most {_NOTES_MAX}")
    for index, line in enumerate(lines):
        check_text(f"{field}[{index}]", line, longest=_TEXT_LENGTH_MAX, empty_ok=True)


def _check_not_negative(value: int, field: str) -> None:
    if value < 0:
        raise InvalidArgument(field, value, "0 or more")
