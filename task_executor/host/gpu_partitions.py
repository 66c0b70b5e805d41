"""Parses configured partitions: sets of GPUs that a slot can have together.

Some boards can connect their GPUs only in fixed groups, such as the halves of a board. Only the
vendor's fabric manager knows these groups, and no library reports them. So the administrator
configures the groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from finegrain.devices.device import GPU, HostDevices, Partition
from finegrain.errors import InvalidArgument

PARTITIONS_MAX: Final = 1_024

_TEXT: Final = re.compile(r"(\d{1,4}(?:\+\d{1,4})*)(?::(\d{1,6}))?(?::(\d{1,6}))?", re.ASCII)
_FORM: Final = (
    "minor numbers of GPUs, a score and a bandwidth in GB/s, such as 0+1, 0+1:2 or 0+1+2+3:1:400"
)


def read_partitions(texts: Iterable[str], host: HostDevices) -> tuple[Partition, ...]:
    """Returns the configured partitions.

    Args:
        texts: one text for each partition. It begins with the minor numbers of the partition's
            GPUs. Two optional values follow: a score (higher is better, default 1), and the
            bandwidth of a ring over the GPUs in GB/s (default: not known).
        host: the devices of the host.

    Raises:
        InvalidArgument: a text is malformed, names a GPU twice, or names a GPU that the host does
            not have. Or there are too many partitions.
    """
    texts = tuple(texts)
    if len(texts) > PARTITIONS_MAX:
        raise InvalidArgument("gpu_partitions", len(texts), f"at most {PARTITIONS_MAX}")
    there = {each.minor for each in host.devices if each.type == GPU}
    found = []
    for text in texts:
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidArgument("gpu_partitions", text, _FORM)
        minors = tuple(sorted(int(each) for each in match[1].split("+")))
        if len(set(minors)) < len(minors) or not there.issuperset(minors):
            known = ", ".join(map(str, sorted(there))) or "none"
            raise InvalidArgument("gpu_partitions", text, f"different GPUs of this host ({known})")
        found.append(Partition(minors, int(match[2] or 1), int(match[3] or 0)))
    return tuple(found)
