"""Reads how much memory the machine and each node have, and how much of it huge pages take.

MemTotal is used, never MemFree. Huge pages are no longer part of normal memory once they are set
aside, so they are counted by size. Old kernels report the count only in meminfo, and the size only
in /proc/meminfo.
"""

import re
from typing import Final

from finegrain.topology import HugePages
from task_executor.host.detection.reader import TreeReader

_FIELD: Final = re.compile(r"(?:Node +\d+ +)?(\w+): +(\d{1,18})(?: (kB))?", re.ASCII)
_KIB: Final = 1024


def read_meminfo(reader: TreeReader, path: str) -> dict[str, int]:
    """Returns the fields of a meminfo file; sizes in bytes, counts as they are."""
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
        reader: the machine's files.
        directory: contains ``hugepages-SIZEkB``.
        meminfo: of the same machine or node; used if the directory is absent.
        default_page_bytes: size of the pages that meminfo counts.
    """
    found = []
    names = [name for name in reader.names(directory) if name.startswith("hugepages-")]
    for name in names:
        size = name.removeprefix("hugepages-").removesuffix("kB")
        count = reader.integer(f"{directory}/{name}/nr_hugepages")
        # A size without pages offers nothing. Longer numbers are no size that a kernel prints.
        if size.isdecimal() and len(size) <= 12 and count is not None and count > 0:
            found.append(HugePages(int(size) * _KIB, count))
    # An old kernel without the directory counts pages of the default size only.
    if not names:
        count = meminfo.get("HugePages_Total", 0)
        if count and default_page_bytes:
            found.append(HugePages(default_page_bytes, count))
    return tuple(sorted(found, key=lambda pages: pages.page_bytes))
