"""How much memory the machine and each node have, and what huge pages took of it.

MemTotal is the measure, never MemFree.  Huge pages are gone from normal memory as soon as they are
set aside, so they are counted per size.  Old kernels tell the count in meminfo only, and the size
in /proc/meminfo only.
"""

import re
from typing import Final

from finegrain.topology import HugePages
from task_executor.host.detection.reader import TreeReader

_FIELD: Final = re.compile(r"(?:Node +\d+ +)?(\w+): +(\d{1,18})(?: (kB))?", re.ASCII)
_KIB: Final = 1024


def read_meminfo(reader: TreeReader, path: str) -> dict[str, int]:
    """Fields of a meminfo file; sizes in bytes, counts as they are."""
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
    """Huge pages set aside, by size, smallest first; sizes without pages are left out.

    ``directory`` holds ``hugepages-SIZEkB``; where it is absent, ``meminfo`` (of the same scope)
    tells the count of pages of the default size.
    """
    found = []
    names = [name for name in reader.names(directory) if name.startswith("hugepages-")]
    for name in names:
        size = name.removeprefix("hugepages-").removesuffix("kB")
        count = reader.integer(f"{directory}/{name}/nr_hugepages")
        if size.isdecimal() and len(size) <= 12 and count is not None and count > 0:
            found.append(HugePages(int(size) * _KIB, count))
    if not names:
        count = meminfo.get("HugePages_Total", 0)
        if count and default_page_bytes:
            found.append(HugePages(default_page_bytes, count))
    return tuple(sorted(found, key=lambda pages: pages.page_bytes))
