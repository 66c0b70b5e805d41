"""Reads FPGAs from the kernel's classes fpga_region and fpga_manager.

A region is the unit that can be programmed. A region below another region is a part of the upper
region, and is not a separate device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from finegrain.topology import Fpga, NumaNode, printable
from task_executor.host.detection.reader import TreeReader

REGIONS: Final = "sys/class/fpga_region"
_MANAGERS: Final = "fpga_manager"
_BUS_ID: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_READY: Final = frozenset({"operating", "unknown", "power up", "write complete"})


def read_fpgas(reader: TreeReader, nodes: Sequence[NumaNode]) -> tuple[Fpga, ...]:
    """Returns the FPGA regions, sorted by number; empty if the kernel has no such class. This
    function never raises.

    Args:
        reader: reads the files of the host.
        nodes: the NUMA nodes of the host. If a region reports any other node, the node of the
            region is not known.
    """
    found = []
    for minor in reader.numbered(REGIONS, "region"):
        name = f"region{minor}"
        path = reader.resolved(f"{REGIONS}/{name}") or f"{REGIONS}/{name}"
        parts = path.split("/")
        if any(part.startswith("region") and part != name for part in parts):
            continue
        bus_id = next((part for part in reversed(parts) if _BUS_ID.fullmatch(part)), None)
        model, state = _manager(reader, path)
        problem = "" if state in _READY or not state else f"its FPGA manager reports: {state}"
        found.append(Fpga(name, minor, bus_id, _node(reader, parts, nodes), model, problem))
    return tuple(found)


def _manager(reader: TreeReader, path: str) -> tuple[str, str]:
    """Returns the name and the state of the manager on the same board; empty if the manager is
    unknown.
    """
    # The directory of the board, a few levels above the region, contains both classes.
    parts = path.split("/")
    for length in range(len(parts) - 1, max(len(parts) - 5, 0), -1):
        folder = "/".join([*parts[:length], _MANAGERS])
        for name in reader.names(folder):
            text = (reader.text(f"{folder}/{name}/{each}") or "" for each in ("name", "state"))
            model, state = (printable(each)[:100] for each in text)
            return model, state
    return "", ""


def _node(reader: TreeReader, parts: list[str], nodes: Sequence[NumaNode]) -> int | None:
    if len(nodes) == 1:
        return nodes[0].id
    for length in range(len(parts), 2, -1):
        reported = reader.integer("/".join([*parts[:length], "numa_node"]))
        if reported is not None and any(node.id == reported for node in nodes):
            return reported
    return None
