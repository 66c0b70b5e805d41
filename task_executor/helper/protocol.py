"""Encodes and decodes the frames of the helper's sockets, and checks every argument of a request.

A frame is 4 bytes with the length of the content (big-endian), and then the content as JSON.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from finegrain.values.bounds import (
    ADDED_ENVIRONMENT_BYTES_MAX,
    AMOUNT_MAX,
    COMMAND_BYTES_MAX,
    COUNTER_MAX,
    CPU_MILLI_MAX,
    CPU_MILLI_MIN,
    GRACE_MS_MAX,
    OUTPUT_BYTES_MAX,
    PIDS_MAX,
    TASK_TIME_MS_MAX,
)
from task_executor.helper.paths import digest

EXIT_CONFIG, EXIT_IN_USE = 2, 3  # exit statuses of a helper that cannot start
PROTOCOL_VERSION = 2  # 2 adds batches of slot moves, best-effort slots, huge pages, kubelets
FRAME_BYTES_MAX = 1 << 20
_MESSAGE_CHARACTERS_MAX = 500
ENVIRONMENT_BYTES_MAX = COMMAND_BYTES_MAX + ADDED_ENVIRONMENT_BYTES_MAX
CPU_NUMBER_MAX = 8191
MEMORY_UNIT_BYTES = 65536  # a multiple of every page size; so the kernel never rounds
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENV_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PAGE_SIZE = re.compile(r"[1-9]\d{0,3}[KMG]B")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9/:._-]{0,127}")
_MAJOR = re.compile(r"[bc] (0|[1-9]\d{0,3})")
_DEVICE_MAP = re.compile(
    r"[A-Za-z0-9-]{1,64}=[A-Za-z0-9-]{1,64}(,[A-Za-z0-9-]{1,64}=[A-Za-z0-9-]{1,64}){0,63}"
)
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")
_MINOR_MAX, _MINORS_MAX = (1 << 20) - 1, 1024

Check = Callable[[str, Any], Any]


class Fault(Exception):
    """An error of a call.

    Args:
        reason: a reason of `finegrain.errors.Reason`.
        message: the text of the error.
        details: the values that belong to the error.
    """

    def __init__(self, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message[:_MESSAGE_CHARACTERS_MAX]
        self.details = {k: v[:200] if isinstance(v, str) else v for k, v in details.items()}

    def as_dict(self) -> dict[str, Any]:
        return {"reason": self.reason, "message": self.message, "details": self.details}


def as_fault(error: BaseException, reason: str) -> Fault:
    """Converts any exception to a Fault, with `reason` if the exception itself has no reason."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Fault("DISK_FULL", f"{error}; free some space and try again")
    return Fault(reason, f"{type(error).__name__}: {error}")


def fault_of(content: dict[str, Any]) -> Fault:
    """Returns the Fault whose content was read from a message or a file."""
    return Fault(content["reason"], content["message"], **content["details"])


def _bad(field: str, value: Any, expected: str) -> Fault:
    shown = repr(value)[:80]
    message = f"{field} is {shown}; expected {expected}"
    return Fault("INVALID_ARGUMENT", message, field=field, value=shown, expected=expected)


def integer(low: int, high: int, unit: int = 1) -> Check:
    def check(field: str, value: Any) -> int:
        # Do not use `isinstance`, because it would accept true and false as numbers.
        if type(value) is not int or not low <= value <= high or value % unit:
            multiple = f", a multiple of {unit}" if unit > 1 else ""
            raise _bad(field, value, f"an integer from {low} to {high}{multiple}")
        return value

    return check


def unchecked(_field: str, value: Any) -> Any:
    return value


def flag(field: str, value: Any) -> bool:
    if type(value) is not bool:
        raise _bad(field, value, "true or false")
    return value


def text(field: str, value: Any) -> str:
    if type(value) is not str or "\0" in value or _unencodable(value):
        raise _bad(field, value, "valid Unicode text without NUL")
    return value


def octets(field: str, value: Any) -> str:
    """Checks a text whose characters 0 to 255 represent bytes."""
    if type(value) is not str or not all(character <= "\xff" for character in value):
        raise _bad(field, value, "bytes as characters 0 to 255")
    return value


def absolute(field: str, value: Any) -> str:
    if not text(field, value).startswith("/"):
        raise _bad(field, value, "an absolute path")
    return str(value)


def _unencodable(value: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in value)


def identifier(field: str, value: Any) -> str:
    if type(value) is not str or not ID.fullmatch(value):
        raise _bad(field, value, "1 to 128 of A-Z a-z 0-9 . _ - with a letter or digit first")
    return value


def cpu_list(field: str, value: Any) -> str:
    """Checks a cpu list such as '0-3,8'. An empty text is valid: it restricts no cpus."""
    _ranges(field, value, CPU_NUMBER_MAX)
    return str(value)


def _ranges(field: str, value: Any, most: int) -> int:
    """Checks a list such as '0-3,8', and returns the count of its numbers."""
    count = 0
    if type(value) is not str:
        raise _bad(field, value, "a list such as 0-3,8")
    for part in value.split(",") if value else ():
        match = _RANGE.fullmatch(part)
        if not match or not int(match[1]) <= int(match[2] or match[1]) <= most:
            raise _bad(field, value, f"a list such as 0-3,8 with numbers to {most}")
        count += int(match[2] or match[1]) - int(match[1]) + 1
    return count


def bytes_by(name: re.Pattern[str], expected: str) -> Check:
    def check(field: str, value: Any) -> dict[str, int]:
        if type(value) is not dict or not all(map(name.fullmatch, value)):
            raise _bad(field, value, f"an object of bytes by {expected}")
        return {key: integer(0, AMOUNT_MAX)(f"{field}.{key}", held) for key, held in value.items()}

    return check


page_bytes = bytes_by(_PAGE_SIZE, "page size, such as 2MB")
device_bytes = bytes_by(_DEVICE, "UUID of a GPU, or region of the dmem controller")


def device_minors(field: str, value: Any) -> dict[str, str]:
    """Checks an object with a list of minor numbers for each kind and major number ("c 195")."""
    if type(value) is not dict or len(value) > 64 or not all(map(_MAJOR.fullmatch, value)):
        raise _bad(field, value, "an object of minors by major, such as c 195, at most 64")
    for major, minors in value.items():
        if _ranges(f"{field}[{major}]", minors, _MINOR_MAX) > _MINORS_MAX:
            raise _bad(f"{field}[{major}]", minors, f"at most {_MINORS_MAX} minors")
    return value


def device_map(field: str, value: Any) -> str:
    """Checks pairs of UUIDs such as 'GPU-1=GPU-2'. An empty text is valid: no GPU is replaced."""
    if type(value) is not str or (value and not _DEVICE_MAP.fullmatch(value)):
        raise _bad(field, value, "pairs of UUIDs such as GPU-1=GPU-2")
    return value


def expand(cpus: str) -> frozenset[int]:
    """Returns the numbers of a list that `cpu_list` has checked."""
    ends = [part.partition("-") for part in cpus.split(",") if part]
    return frozenset(n for low, _, high in ends for n in range(int(low), int(high or low) + 1))


def argv(field: str, value: Any) -> list[str]:
    if type(value) is not list or not value or not all(type(item) is str for item in value):
        raise _bad(field, value, "a list of text, program first")
    checked = [text(field, item) for item in value]
    if not checked[0] or sum(len(item.encode()) + 1 for item in checked) > COMMAND_BYTES_MAX:
        raise _bad(field, value, f"a program, and at most {COMMAND_BYTES_MAX} bytes in total")
    return checked


def environment(field: str, value: Any) -> dict[str, str]:
    if type(value) is not dict:
        raise _bad(field, type(value).__name__, "an object of names and text")
    for key, item in value.items():  # a value is possibly a secret, so no error shows it
        if not _ENV_KEY.fullmatch(key):
            raise _bad(field, key, "names of A-Z a-z 0-9 _ without a digit first")
        if type(item) is not str or "\0" in item or _unencodable(item):
            raise _bad(f"{field}[{key}]", "***", "valid Unicode text without NUL")
    if (
        sum(len(f"{key}={item}".encode()) + 1 for key, item in value.items())
        > ENVIRONMENT_BYTES_MAX
    ):
        raise _bad(field, "too long", f"at most {ENVIRONMENT_BYTES_MAX} bytes in total")
    return value


class Field(NamedTuple):
    """One argument of a verb."""

    check: Check
    default: Any = ...  # `...` if the argument is required; None if null is allowed


Fields = Mapping[str, Field]


def each_of(fields: Fields) -> Check:
    def check(field: str, value: Any) -> list[dict[str, Any]]:
        if type(value) is not list:
            raise _bad(field, type(value).__name__, "a list of objects")
        return [check_fields(f"{field}[{at}]", item, fields) for at, item in enumerate(value)]

    return check


_ALLOCATION = {"allocation_id": Field(identifier), "generation": Field(integer(1, COUNTER_MAX))}
_TASK = {"task_id": Field(identifier)}
_CPUS = {"cpus": Field(cpu_list, ""), "mems": Field(cpu_list, "")}
_LIMITS = (
    _ALLOCATION
    | _CPUS
    | {
        "cpu_milli": Field(integer(CPU_MILLI_MIN, CPU_MILLI_MAX)),
        "cpu_limit_milli": Field(integer(-1, CPU_MILLI_MAX), None),
        "memory_bytes": Field(integer(MEMORY_UNIT_BYTES, AMOUNT_MAX, MEMORY_UNIT_BYTES)),
        "pids_max": Field(integer(1, PIDS_MAX), None),
        "best_effort": Field(flag, False),
        "hugepages": Field(page_bytes, {}),
        "devices_open": Field(device_minors, {}),
        "devices_closed": Field(device_minors, {}),
    }
)
_PAGE = {"after": Field(text, "")}
_GRACE = {"grace_ms": Field(integer(0, GRACE_MS_MAX), 0)}
_INPUT = {
    "offset": Field(integer(0, AMOUNT_MAX)),
    "data": Field(octets, ""),
    "eof": Field(flag, False),
}
_HOLD = {
    "holder": Field(identifier),
    "stdout": Field(integer(0, OUTPUT_BYTES_MAX)),
    "stderr": Field(integer(0, OUTPUT_BYTES_MAX)),
}
_TASK_MEMORY = integer(MEMORY_UNIT_BYTES, AMOUNT_MAX, MEMORY_UNIT_BYTES)
SIGNAL: dict[str, Field] = {"signum": Field(integer(1, 64))}
HELPER_VERBS: Mapping[str, Fields] = {
    "hello": {},
    "create_slot": _LIMITS,
    "resize_slot": _LIMITS,
    "place_slots": {"slots": Field(each_of(_ALLOCATION | _CPUS))},
    "park_slot": _ALLOCATION | {"memory_bytes": Field(integer(0, AMOUNT_MAX), 0)},
    "unpark_slot": _ALLOCATION | {"device_map": Field(device_map, "")},
    "destroy_slot": _ALLOCATION | _GRACE,
    "start_task": _TASK
    | _ALLOCATION
    | {
        "argv": Field(argv),
        "env": Field(environment),
        "cwd": Field(absolute, None),
        "uid": Field(integer(0, (1 << 32) - 2), None),
        "gid": Field(integer(0, (1 << 32) - 2), None),
        "stdin": Field(flag, False),
        "log_limit_bytes": Field(integer(0, OUTPUT_BYTES_MAX), 64 << 20),
        "timeout_ms": Field(integer(1, TASK_TIME_MS_MAX), None),
        "memory_limit_bytes": Field(_TASK_MEMORY, None),
        "output_holder": Field(identifier, None),
    },
    "limit_task": _TASK | {"memory_limit_bytes": Field(_TASK_MEMORY)},
    "signal_task": _TASK | SIGNAL,
    "kill_task": _TASK | _GRACE,
    "write_input": _TASK | _INPUT,
    "hold_output": _TASK | _HOLD,
    "inspect": _PAGE,
    "usage": _PAGE,
    "forget_task": _TASK,
    "devices": {},
    "limit_device_memory": {
        "slots": Field(each_of(_ALLOCATION | {"limits": Field(device_bytes)})),
        "probe": Field(device_bytes, {}),
    },
    "kubelet": {"seen": Field(text, "")},
    "stop": {},
}
_USER = Field(integer(0, (1 << 32) - 2))
CONFIG: Fields = {
    "state_dir": Field(absolute),
    "socket_path": Field(absolute),
    "executor_id": Field(identifier),
    "front_uid": _USER,
    "front_gid": _USER,
    "cgroup_root": Field(absolute, "/"),
    "cgroup_parent": Field(absolute, None),
    "front_pid": Field(integer(1, 1 << 22), None),
    "holder_pid": Field(integer(1, 1 << 22), None),
    "detached": Field(flag, True),
    "isolation": Field(text, "auto"),
    "task_uid": Field(_USER.check, 65534),
    "task_gid": Field(_USER.check, 65534),
    "task_uid_min": Field(_USER.check, 1),
    "task_uid_max": Field(_USER.check, 0),
    "allow_root_tasks": Field(flag, False),
    "scratch_root": Field(absolute, None),
    "kubelet_dir": Field(absolute, None),
    "kubelet_config": Field(absolute, None),
}
_COUNT = Field(integer(0, 1 << 62))


def config_digest(config: Mapping[str, Any]) -> str:
    """Returns a digest of a configuration, without values that can differ between starts."""
    return digest({**config, "front_pid": None, "holder_pid": None})


SUPERVISOR_VERBS: Mapping[str, Fields] = {
    # The helper has already checked the content from the front.
    "start": {"spec": Field(unchecked)},
    "state": _TASK,
    "tasks": _PAGE,
    "forget": _TASK,
    "reaped": {"pid": _COUNT, "status": _COUNT, "cpu_usec": _COUNT, "peak_bytes": _COUNT},
    "signal": _TASK | SIGNAL,
    "kill": _TASK | _GRACE,
    "input": _TASK | _INPUT,
    "hold": _TASK | _HOLD,
}


def encode(message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > FRAME_BYTES_MAX:
        raise Fault("MESSAGE_TOO_LARGE", f"frame of {len(body)} bytes; at most {FRAME_BYTES_MAX}")
    return len(body).to_bytes(4, "big") + body


def frames(inbox: bytearray) -> Iterator[bytes]:
    """Removes complete frames from `inbox`, and yields their contents.

    Raises:
        Fault: a frame has a length that is not allowed.
    """
    while len(inbox) >= 4:
        size = int.from_bytes(inbox[:4], "big")
        # The smallest object is {}. Check the length first, because a frame with an invalid length
        # possibly never becomes complete.
        if not 2 <= size <= FRAME_BYTES_MAX:
            raise Fault("INVALID_ARGUMENT", f"frame of {size} bytes; expected 2 to 1 MiB")
        if len(inbox) < 4 + size:
            return
        body = bytes(inbox[4 : 4 + size])
        del inbox[: 4 + size]
        yield body


def decode(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in a frame.

    Raises:
        Fault: the frame is not a JSON object.
    """
    try:
        message = json.loads(body)
    # The parser raises RecursionError for deeply nested JSON, which must not stop the helper.
    except (ValueError, RecursionError) as error:
        raise Fault("INVALID_ARGUMENT", f"frame is not JSON: {error}"[:200]) from None
    if type(message) is not dict:
        raise Fault("INVALID_ARGUMENT", "frame is not a JSON object")
    return message


def check_request(message: dict[str, Any], verbs: Mapping[str, Fields]) -> dict[str, Any]:
    """Returns the checked arguments of a request, with defaults filled in.

    Raises:
        Fault: the verb is unknown, or an argument is not valid.
    """
    verb, args = message.get("verb"), message.get("args", {})
    if type(verb) is not str or verb not in verbs:
        raise _bad("verb", verb, "one of " + ", ".join(verbs))
    return check_fields(f"args of {verb}", args, verbs[verb])


def check_fields(what: str, args: Any, fields: Fields) -> dict[str, Any]:
    # Reject unknown names, because otherwise a misspelled limit would be ignored silently.
    if type(args) is not dict or not fields.keys() >= args.keys():
        unknown = sorted(args.keys() - fields.keys()) if type(args) is dict else args
        raise _bad(what, unknown, "an object with " + ", ".join(fields))
    checked = {}
    for name, field in fields.items():
        value = args.get(name, field.default)
        if value is ...:
            raise _bad(name, None, "a value")
        # null is allowed only if the default is None, and means this default.
        is_default_null = value is None and field.default is None
        checked[name] = None if is_default_null else field.check(name, value)
    return checked
