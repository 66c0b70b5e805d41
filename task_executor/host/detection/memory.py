"""Reads the memory and the huge pages of the machine and of each NUMA node. The amount of memory is
MemTotal, not MemFree. Huge pages that are set aside are not part of normal memory. So this module
counts them separately, by size. Old kernels report the number of huge pages only in meminfo files,
and the size only in /proc/meminfo.
"""

import re
from typing import Final

from finegrain.topology import HugePages
from task_executor.host.detection.reader import TreeReader

_FIELD: Final = re.compile(r"(?:Node +\d+ +)?(\w+): +(\d{1,18})(?: (kB))?", re.ASCII)
_KIB: Final = 1024


def read_meminfo(reader: TreeReader, path: str) -> dict[str, int]:
    """Returns the fields of a meminfo file. Sizes are in bytes."""
    fields = {}
    for line in reader.lines(path):
        match = _FIELD.match(line)
        if match is not None:
            name, number, unit = match.groups()
            fields[name] = int(number) * (_KIB if unit else 1)
    return fields


def read_hugepages(
    reader: TreeReader, directory: str, meminfo: dict[str, int], default_page_bytes: int | None
) -> tuple[HugePages, ...]:
    """Returns the huge pages that are set aside, by size, smallest first.

    Sizes without pages are left out.

    Args:
        reader: reads the files of the host.
        directory: the directory that contains ``hugepages-SIZEkB``.
        meminfo: the meminfo fields of the machine or the node, for hosts where the directory does
            not exist.
        default_page_bytes: the size of the pages that meminfo counts.
    """
    found = []
    names = [name for name in reader.names(directory) if name.startswith("hugepages-")]
    for name in names:
        size = name.removeprefix("hugepages-").removesuffix("kB")
        count = reader.integer(f"{directory}/{name}/nr_hugepages")
        # Leave out a size without pages, and a number with more digits than a kernel prints.
        if size.isdecimal() and len(size) <= 12 and count is not None and count > 0:
            found.append(HugePages(int(size) * _KIB, count))
    # An old kernel without this directory counts only pages of the default size.
    if not names:
        count = meminfo.get("HugePages_Total", 0)
        if count and default_page_bytes:
            found.append(HugePages(default_page_bytes, count))
    return tuple(sorted(found, key=lambda pages: pages.page_bytes))
