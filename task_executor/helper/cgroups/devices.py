"""Filters device files on cgroup v2, with a BPF program that the kernel runs for each open and
mknod.

A limit `devices_open` such as {"c 195": "0,255"} closes all files of major number 195, except minor
numbers 0 and 255. A limit `devices_closed` such as {"c 10": "58"} closes only minor number 58 of
major number 10. The filter does not restrict other devices.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from contextlib import suppress
from typing import Any

from task_executor.helper.protocol import expand

# The number of the system call bpf.
_MACHINE = os.uname().machine
_CALL = {"x86_64": 321, "aarch64": 280}.get(_MACHINE, 0)
_LOAD, _ATTACH, _DETACH, _FD_BY_ID, _QUERY = 5, 8, 9, 13, 16  # numbers of the kernel's enum bpf_cmd
_PROGRAM_TYPE, _ATTACH_TYPE, _ALLOW_MULTI = 15, 6, 2  # numbers of BPF_PROG_TYPE_CGROUP_DEVICE etc.
_KINDS = {"b": 1, "c": 2}  # types of devices in struct bpf_cgroup_dev_ctx
_IDS_MAX = 64  # maximum number of programs on one group, as in the kernel
_R0, _R1, _TYPE, _MAJOR, _MINOR = range(5)  # registers
_LOAD_WORD, _AND, _SET, _IF_EQUAL, _IF_NOT_EQUAL, _EXIT = 0x61, 0x54, 0xB7, 0x15, 0x55, 0x95
_syscall = ctypes.CDLL(None, use_errno=True).syscall


def program_of(limits: dict[str, Any]) -> bytes:
    """Returns the program for these limits: one block per major number, with one comparison per
    minor number.
    """
    code = [
        _step(_LOAD_WORD, _TYPE, _R1, 0),
        _step(_AND, _TYPE, value=0xFFFF),  # the upper half is the kind of access, which is ignored
        _step(_LOAD_WORD, _MAJOR, _R1, 4),
        _step(_LOAD_WORD, _MINOR, _R1, 8),
    ]
    for field, listed in (("devices_open", 1), ("devices_closed", 0)):
        for major, text in (limits.get(field) or {}).items():
            kind, _, number = major.partition(" ")
            minors = sorted(expand(text))
            count = len(minors)
            code += [
                _step(_IF_NOT_EQUAL, _TYPE, jump=count + 4, value=_KINDS[kind]),
                _step(_IF_NOT_EQUAL, _MAJOR, jump=count + 3, value=int(number)),
                _step(_SET, _R0, value=listed),
                *(
                    _step(_IF_EQUAL, _MINOR, jump=count - at, value=minor)
                    for at, minor in enumerate(minors)
                ),
                _step(_SET, _R0, value=1 - listed),
                _step(_EXIT),
            ]
    return b"".join([*code, _step(_SET, _R0, value=1), _step(_EXIT)])


def _step(code: int, target: int = 0, source: int = 0, jump: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | target, jump, value)


def attach(directory: str, program: bytes) -> None:
    """Attaches `program` to a group, and detaches all other programs.

    The function first attaches the new program, and then detaches the old program. So the group
    always has a filter. While both are attached, a device can be opened only if both programs allow
    it.

    Raises:
        OSError: the kernel does not accept the program.
    """
    group = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = [group]
    try:
        old = _attached(group)
        opened.append(new := _load(program))
        _bpf(_ATTACH, struct.pack("<IIII", group, new, _ATTACH_TYPE, _ALLOW_MULTI))
        for each in old:
            opened.append(fd := _bpf(_FD_BY_ID, struct.pack("<III", each, 0, 0)))
            _bpf(_DETACH, struct.pack("<IIII", group, fd, _ATTACH_TYPE, 0))
        now = _attached(group)
        if len(now) != 1 or now[0] in old:
            raise OSError(errno.EIO, f"programs {now} are attached instead of one", directory)
    finally:
        for fd in opened:
            os.close(fd)


def _load(program: bytes) -> int:
    code, licence = (ctypes.create_string_buffer(text) for text in (program, b"Apache-2.0"))
    places = ctypes.addressof(code), ctypes.addressof(licence)
    count = len(program) // struct.calcsize("<BBhi")
    request = struct.pack("<IIQQ24x16s", _PROGRAM_TYPE, count, *places, b"finegrain")
    # Before kernel 5.11, the memory of programs counts as locked memory. The usual limit of locked
    # memory is 64 KiB. So raise the limit for a moment.
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with suppress(ValueError, OSError):  # a container can forbid a higher limit
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    try:
        return _bpf(_LOAD, request)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)  # tasks would inherit the raised limit


def _attached(group: int) -> list[int]:
    """Returns the ids of the programs that are attached to the group itself."""
    ids = (ctypes.c_uint32 * _IDS_MAX)()
    place = ctypes.addressof(ids)
    request = struct.pack("<IIIIQI4x", group, _ATTACH_TYPE, 0, 0, place, _IDS_MAX)
    _bpf(_QUERY, request, ids)
    return [number for number in ids if number]


def _bpf(command: int, request: bytes, *_alive: Any) -> int:
    if not _CALL:
        raise OSError(errno.ENOSYS, f"devices cannot be filtered on {_MACHINE}")
    buffer = ctypes.create_string_buffer(request, len(request))
    result = _syscall(ctypes.c_long(_CALL), command, buffer, len(request))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
