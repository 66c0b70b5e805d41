"""Converts shared values from and to messages, and checks them: amounts, labels, times, durations.

The argument `field` is always the path of the message in the request ("requests[3].profile").
Errors name the wrong field by this path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from finegrain.cpuset import CpuSet
from finegrain.errors import InvalidArgument
from finegrain.ids import LABEL_KEY_PATTERN, check_text
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    Amounts,
    ResourceProfile,
    extended_items,
)
from finegrain.rpc.known import Known
from finegrain.rpc.wire_devices import (
    dimensions_from_proto,
    requests_from_proto,
    requests_to_proto,
)
from finegrain.v1 import resources_pb2
from finegrain.values.bounds import AMOUNT_MAX, CPU_MILLI_MAX, TOTAL_MAX

EXTENDED_NAME_PATTERN = re.compile(r"[a-z][A-Za-z0-9_.-]{0,62}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,62})?")
EXTENDED_MAX = 64  # maximum number of countable resources in one message
LABELS_MAX = 64
CPU_LIST_LENGTH_MAX = 65_536
LABEL_VALUE_LENGTH_MAX = 128
DURATION_MS_MAX = 10 * 366 * 24 * 3600 * 1000

KNOWN_MAX = 16_384
"""Maximum number of cached profiles. A cluster has few different profiles, but remote callers could
send many different profiles.
"""

_PROFILE_FIELDS = (
    "cpu_milli",
    "task_heap_memory_bytes",
    "task_off_heap_memory_bytes",
    "managed_memory_bytes",
    "network_memory_bytes",
)
_AMOUNT_FIELDS = (
    "cpu_milli",
    "memory_bytes",
    "task_heap_memory_bytes",
    "task_off_heap_memory_bytes",
    "managed_memory_bytes",
    "network_memory_bytes",
    "best_effort_cpu_milli",
)


_profiles: Known[ResourceProfile] = Known(KNOWN_MAX)


_MOST = {CPU_MILLI: CPU_MILLI_MAX, BEST_EFFORT_CPU_MILLI: CPU_MILLI_MAX}
"""Largest amounts of the dimensions whose limit is below `AMOUNT_MAX`."""


def check_amount(field: str, value: int, most: int = AMOUNT_MAX) -> int:
    """Returns `value` unchanged if it is a valid amount.

    Args:
        field: name of the field, for the error.
        value: the amount.
        most: the largest valid amount.

    Raises:
        InvalidArgument: the amount is negative or above `most`.
    """
    if not 0 <= value <= most:
        raise InvalidArgument(field, value, f"an amount from 0 to {most}")
    return value


def check_cpu_list(text: str, field: str, *, longest: int = CPU_LIST_LENGTH_MAX) -> str:
    """Checks that `text` is a cpu list and not too long. Returns the text unchanged. An empty text
    means no cpus.

    Args:
        text: the list.
        field: name of the field, for the error.
        longest: maximum number of characters.

    Raises:
        InvalidArgument: the text is not a cpu list, or is too long.
    """
    if len(text) > longest:
        raise InvalidArgument(field, text, f"a cpu list of at most {longest} characters")
    if text:
        CpuSet.parse(text, field)
    return text


def profile_from_proto(message: resources_pb2.ResourceProfile, field: str) -> ResourceProfile:
    """Reads a profile and checks every amount. The resource manager checks minimum sizes.

    Raises:
        InvalidArgument: an amount is negative or too large, a name is malformed, or no host could
            ever provide the devices.
    """
    # Equal profiles can differ in the order of their map entries. In this case the cache has two
    # entries for one profile, which does no harm.
    data = message.SerializeToString()
    profile = _profiles.get(data)
    if profile is None:
        profile = _checked_profile(message, field)
        # Cache only valid profiles. The path `field` is not part of the key, because it matters
        # only for errors.
        _profiles.keep(data, profile)
    return profile


def _checked_profile(message: resources_pb2.ResourceProfile, field: str) -> ResourceProfile:
    parts = {
        name: check_amount(f"{field}.{name}", getattr(message, name), _MOST.get(name, AMOUNT_MAX))
        for name in _PROFILE_FIELDS
    }
    extended = _extended_from_proto(message.extended, f"{field}.extended")
    devices, isolation = requests_from_proto(message, field)
    profile = ResourceProfile(
        **parts,
        extended=extended_items(extended),
        devices=devices,
        isolation=isolation,
    )
    # The sum can be above the limit even if each part is within the limit.
    if profile.memory_bytes > AMOUNT_MAX:
        raise InvalidArgument(
            f"{field}.*_memory_bytes", profile.memory_bytes, f"a sum of at most {AMOUNT_MAX}"
        )
    return profile


@lru_cache(KNOWN_MAX)
def profile_to_proto(profile: ResourceProfile) -> resources_pb2.ResourceProfile:
    """Writes a profile. The returned message is shared: copy it before changing it."""
    message = resources_pb2.ResourceProfile(
        cpu_milli=profile.cpu_milli,
        task_heap_memory_bytes=profile.task_heap_memory_bytes,
        task_off_heap_memory_bytes=profile.task_off_heap_memory_bytes,
        managed_memory_bytes=profile.managed_memory_bytes,
        network_memory_bytes=profile.network_memory_bytes,
        extended=dict(profile.extended),
        require_isolation=profile.required_isolation,
    )
    requests_to_proto(profile.devices, message)
    return message


def amounts_from_proto(message: resources_pb2.ResourceAmounts, field: str) -> dict[str, int]:
    """Returns amounts by dimension, without zeros.

    Raises:
        InvalidArgument: an amount is negative or too large, or a name is malformed.
    """
    amounts = {
        name: check_amount(f"{field}.{name}", getattr(message, name), _MOST.get(name, AMOUNT_MAX))
        for name in _AMOUNT_FIELDS
    }
    for name, amount in _extended_from_proto(message.extended, f"{field}.extended").items():
        amounts[EXTENDED_PREFIX + name] = amount
    for name, amount in dimensions_from_proto(message.devices, f"{field}.devices").items():
        amounts[DEVICE_PREFIX + name] = amount
    return {name: amount for name, amount in amounts.items() if amount}


def amounts_to_proto(amounts: Amounts) -> resources_pb2.ResourceAmounts:
    """Writes amounts; the inverse of `amounts_from_proto`. An amount above `TOTAL_MAX` is written
    as `TOTAL_MAX`.
    """
    message = resources_pb2.ResourceAmounts()
    for name, total in amounts.items():
        amount = min(total, TOTAL_MAX)
        if name.startswith(EXTENDED_PREFIX):
            message.extended[name.removeprefix(EXTENDED_PREFIX)] = amount
        elif name.startswith(DEVICE_PREFIX):
            message.devices[name.removeprefix(DEVICE_PREFIX)] = amount
        else:
            setattr(message, name, amount)
    return message


def labels_from_proto(labels: Mapping[str, str], field: str) -> tuple[tuple[str, str], ...]:
    """Returns labels sorted by key.

    Raises:
        InvalidArgument: there are too many labels, a key is malformed, or a value is too long or
            not printable.
    """
    if not labels:
        return ()
    if len(labels) > LABELS_MAX:
        raise InvalidArgument(field, f"{len(labels)} labels", f"at most {LABELS_MAX}")
    for key, value in labels.items():
        if not LABEL_KEY_PATTERN.fullmatch(key):
            raise InvalidArgument(
                f"{field} key", key, "1 to 63 characters out of A-Z a-z 0-9 . _ / -"
            )
        check_text(f"{field}[{key}]", value, longest=LABEL_VALUE_LENGTH_MAX, empty_ok=True)
    return tuple(sorted(labels.items()))


def timestamp_ms_to_proto(time_ms: int) -> Timestamp:
    """Writes a time that is given in milliseconds since 1970."""
    return Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)


def timestamp_ms_from_proto(message: Timestamp) -> int:
    """Returns milliseconds since 1970, rounded down."""
    return message.seconds * 1000 + message.nanos // 1_000_000


def duration_ms_to_proto(duration_ms: int) -> Duration:
    """Writes a duration of 0 or more milliseconds."""
    return Duration(seconds=duration_ms // 1000, nanos=duration_ms % 1000 * 1_000_000)


def duration_ms_from_proto(
    message: Duration, field: str, *, smallest_ms: int = 0, largest_ms: int = DURATION_MS_MAX
) -> int:
    """Returns the duration in milliseconds, rounded up.

    Args:
        message: the duration.
        field: path of the message, for errors.
        smallest_ms: smallest allowed value.
        largest_ms: largest allowed value.

    Raises:
        InvalidArgument: the duration is malformed, or not from `smallest_ms` to `largest_ms`.
    """
    # The nanoseconds are negated before and after the integer division, so they are rounded up to
    # milliseconds.
    duration_ms = message.seconds * 1000 - (-message.nanos // 1_000_000)
    well_formed = abs(message.nanos) < 1_000_000_000
    if not well_formed or not smallest_ms <= duration_ms <= largest_ms:
        raise InvalidArgument(
            field,
            f"{duration_ms / 1000:g} s",
            f"{smallest_ms / 1000:g} s to {largest_ms / 1000:g} s",
        )
    return duration_ms


def _extended_from_proto(extended: Mapping[str, int], field: str) -> dict[str, int]:
    if len(extended) > EXTENDED_MAX:
        raise InvalidArgument(field, f"{len(extended)} names", f"at most {EXTENDED_MAX}")
    for name, amount in extended.items():
        if not EXTENDED_NAME_PATTERN.fullmatch(name):
            raise InvalidArgument(
                f"{field} key",
                name,
                f"a name such as license or example.com/license: {EXTENDED_NAME_PATTERN.pattern}",
            )
        check_amount(f"{field}[{name}]", amount)
    return dict(extended)
