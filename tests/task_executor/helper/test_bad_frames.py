"""Any bytes that arrive at the helper's socket get an error or a closed connection; the helper goes
on.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from task_executor.helper.launch import HelperConfig
from task_executor.helper.protocol import (
    CONFIG,
    FRAME_BYTES_MAX,
    HELPER_VERBS,
    Fault,
    check_fields,
    check_request,
    decode,
    encode,
    frames,
)
from task_executor.helper.server import peer_uid
from tests.support.patience import PATIENCE_S
from tests.task_executor.helper.conftest import Host


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def request(verb: object = "hello", args: object = None, **more: object) -> bytes:
    message = {"id": 1, "verb": verb, "args": {} if args is None else args} | more
    return framed(json.dumps(message).encode())


def speak(host: Host, data: bytes, end: bool = False) -> list[dict[str, Any]]:
    """Sends raw bytes. Returns every answer until the helper closes the connection, or until it has
    answered one request.
    """
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE_S)
        peer.connect(host.config.socket_path)
        peer.sendall(data)
        if end:
            peer.shutdown(socket.SHUT_WR)
        inbox, answers = bytearray(), list[dict[str, Any]]()
        while received := peer.recv(1 << 16):
            inbox += received
            answers += [decode(body) for body in frames(inbox)]
            if answers and answers[-1]["id"] is not None:
                break
        return answers


async def works(host: Host) -> bool:
    return (await host.client.hello()).pid == host.pid


CLOSING = [
    pytest.param((1 << 31).to_bytes(4, "big") + b"x", "frame of", id="two gigabytes"),
    pytest.param((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), "frame of", id="length just above"),
    pytest.param(framed(b""), "frame of 0", id="empty frame"),
    pytest.param(framed(b"\xff\xfe\x00"), "not JSON", id="not text"),
    pytest.param(framed(b"{'a': 1}"), "not JSON", id="nearly JSON"),
    pytest.param(framed(b"[" * 200_000 + b"]" * 200_000), "not JSON", id="nested too deep"),
    pytest.param(framed(b'{"id":' + b"9" * 10_000 + b"}"), "not JSON", id="a number too long"),
    pytest.param(framed(b"[1, 2]"), "not a JSON object", id="a list"),
    pytest.param(framed(b'"hello"'), "not a JSON object", id="a word"),
    pytest.param(framed(b"null"), "not a JSON object", id="null"),
    pytest.param(framed(b"{}"), "integer id", id="no id"),
    pytest.param(request(id="one"), "integer id", id="id that is text"),
    pytest.param(request(id=True), "integer id", id="id that is true"),
    pytest.param(request(id=[]), "integer id", id="id that is a list"),
    pytest.param(request(extra=1), "integer id", id="a fourth member"),
    pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame of", id="another protocol"),
]


@pytest.mark.parametrize(("data", "message"), CLOSING)
async def test_a_broken_stream_gets_a_reason_and_is_closed(
    plain_host: Host, data: bytes, message: str
) -> None:
    answers = speak(plain_host, data)
    assert [answer["id"] for answer in answers] == [None]
    assert answers[0]["ok"] is False
    assert answers[0]["error"]["reason"] == "INVALID_ARGUMENT"
    assert message in answers[0]["error"]["message"]
    assert await works(plain_host)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0\x10half", request()[:-1]])
async def test_a_truncated_frame_is_dropped(plain_host: Host, data: bytes) -> None:
    assert speak(plain_host, data, end=True) == []
    assert await works(plain_host)


SLOT = {"allocation_id": "a", "generation": 1}
LIMITS = SLOT | {"cpu_milli": 1000, "memory_bytes": 1 << 20}
TASK = SLOT | {"task_id": "t", "argv": ["true"], "env": {}}
REFUSED = [
    ("an unknown verb", "reboot", {}, "verb"),
    ("a verb that is a method of the helper", "tell", {}, "verb"),
    ("a private verb", "_leave", {}, "verb"),
    ("a verb that is a number", 7, {}, "verb"),
    ("a verb that is null", None, {}, "verb"),
    ("arguments that are a list", "hello", [1], "args of hello"),
    ("an unknown argument", "hello", {"loud": True}, "args of hello"),
    ("a missing argument", "create_slot", SLOT, "cpu_milli"),
    ("an id with a slash", "destroy_slot", SLOT | {"allocation_id": "../../x"}, "allocation_id"),
    ("an id that is dots", "destroy_slot", SLOT | {"allocation_id": ".."}, "allocation_id"),
    ("an id with a newline", "destroy_slot", SLOT | {"allocation_id": "a\n"}, "allocation_id"),
    ("an id with NUL", "destroy_slot", SLOT | {"allocation_id": "a\0"}, "allocation_id"),
    ("an empty id", "destroy_slot", SLOT | {"allocation_id": ""}, "allocation_id"),
    (
        "an id that is too long",
        "destroy_slot",
        SLOT | {"allocation_id": "a" * 129},
        "allocation_id",
    ),
    ("a generation of zero", "destroy_slot", SLOT | {"generation": 0}, "generation"),
    ("a generation that is true", "destroy_slot", SLOT | {"generation": True}, "generation"),
    ("a generation that is a float", "destroy_slot", SLOT | {"generation": 1.0}, "generation"),
    ("a generation that is text", "destroy_slot", SLOT | {"generation": "1"}, "generation"),
    ("a negative grace", "destroy_slot", SLOT | {"grace_ms": -1}, "grace_ms"),
    ("no cpu", "create_slot", LIMITS | {"cpu_milli": 9}, "cpu_milli"),
    ("memory off the unit", "create_slot", LIMITS | {"memory_bytes": 100_000}, "memory_bytes"),
    ("memory beyond all", "create_slot", LIMITS | {"memory_bytes": 1 << 61}, "memory_bytes"),
    ("negative memory", "create_slot", LIMITS | {"memory_bytes": -65536}, "memory_bytes"),
    ("cpus in words", "create_slot", LIMITS | {"cpus": "all"}, "cpus"),
    ("cpus backwards", "create_slot", LIMITS | {"cpus": "3-1"}, "cpus"),
    ("cpus without end", "create_slot", LIMITS | {"cpus": "0-99999"}, "cpus"),
    ("cpus with a newline", "create_slot", LIMITS | {"cpus": "0\n"}, "cpus"),
    ("no pids", "create_slot", LIMITS | {"pids_max": 0}, "pids_max"),
    ("argv as text", "start_task", TASK | {"argv": "true"}, "argv"),
    ("argv with a number", "start_task", TASK | {"argv": ["a", 1]}, "argv"),
    ("argv with an empty program", "start_task", TASK | {"argv": [""]}, "argv"),
    ("argv with half a character", "start_task", TASK | {"argv": ["\ud800"]}, "argv"),
    ("env as a list", "start_task", TASK | {"env": []}, "env"),
    ("env with a number", "start_task", TASK | {"env": {"A": 1}}, "env[A]"),
    ("a negative user", "start_task", TASK | {"uid": -1}, "uid"),
    ("the user that means no change", "start_task", TASK | {"uid": (1 << 32) - 1}, "uid"),
    ("a log of negative length", "start_task", TASK | {"log_limit_bytes": -1}, "log_limit_bytes"),
    ("stdin as a number", "start_task", TASK | {"stdin": 1}, "stdin"),
    ("signal zero", "signal_task", {"task_id": "t", "signum": 0}, "signum"),
    ("signal 65", "signal_task", {"task_id": "t", "signum": 65}, "signum"),
    ("input before the start", "write_input", {"task_id": "t", "offset": -1}, "offset"),
    ("input that is a list", "write_input", {"task_id": "t", "offset": 0, "data": []}, "data"),
]


@pytest.mark.parametrize(
    ("verb", "args", "field"), [pytest.param(*r[1:], id=r[0]) for r in REFUSED]
)
def test_bad_arguments_are_refused_by_field(verb: Any, args: Any, field: str) -> None:
    with pytest.raises(Fault) as caught:
        check_request(decode(request(verb, args)[4:]), HELPER_VERBS)
    assert caught.value.reason == "INVALID_ARGUMENT"
    assert caught.value.details["field"] == field
    assert caught.value.details["expected"]


async def test_a_refused_request_leaves_the_connection_usable(plain_host: Host) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE_S)
        peer.connect(plain_host.config.socket_path)
        peer.sendall(request("reboot", id=1) + request("hello", id=2))
        inbox, answers = bytearray(), list[dict[str, Any]]()
        while len(answers) < 2:
            inbox += peer.recv(1 << 16)
            answers += [decode(body) for body in frames(inbox)]
    assert [(a["id"], a["ok"]) for a in answers] == [(1, False), (2, True)]


async def test_input_that_no_byte_can_be_is_refused(plain_host: Host) -> None:
    await plain_host.slot()
    await plain_host.start("sleep 60", stdin=True)
    args = {"task_id": "task", "offset": 0, "data": "\u20ac"}
    assert speak(plain_host, request("write_input", args))[0]["ok"] is False
    assert await works(plain_host)


async def test_a_frame_that_comes_in_single_bytes_is_understood(plain_host: Host) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(PATIENCE_S)
        peer.connect(plain_host.config.socket_path)
        for byte in request():
            peer.send(bytes([byte]))
        answer = peer.recv(1 << 16)
    assert decode(answer[4:])["result"]["pid"] == plain_host.pid


async def test_a_front_that_never_reads_is_dropped_and_harms_nobody(plain_host: Host) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.settimeout(PATIENCE_S)
        deaf.connect(plain_host.config.socket_path)
        flood = request("reboot") * 100_000
        with pytest.raises(ConnectionError):
            deaf.sendall(flood)
    assert await works(plain_host)


async def test_too_many_connections_are_turned_away_until_one_goes(plain_host: Host) -> None:
    peers = []
    for _n in range(80):
        peers.append(socket.socket(socket.AF_UNIX))
        peers[-1].connect(plain_host.config.socket_path)
    assert await works(plain_host)
    for peer in peers:
        peer.close()
    assert speak(plain_host, request())[0]["ok"] is True


def test_what_is_too_long_for_a_frame_is_never_sent() -> None:
    with pytest.raises(Fault, match="at most"):
        encode({"data": "x" * FRAME_BYTES_MAX})


@pytest.mark.needs("nobody-user")
async def test_another_user_is_turned_away(plain_host: Host) -> None:
    """Two checks reject the user: the mode of the socket, and the credentials of the peer."""
    path = Path(plain_host.config.socket_path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert "PermissionError" in await say_hello_as_nobody(path)
    path.chmod(0o666)
    assert await say_hello_as_nobody(path) == "0 bytes\n"


async def say_hello_as_nobody(path: Path) -> str:
    code = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(20)\n"
        f"s.connect({str(path)!r})\n"
        f"try: s.sendall({request()!r}); print(len(s.recv(1000)), 'bytes')\n"
        "except ConnectionError: print('0 bytes')"
    )
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or sys.executable
    child = await asyncio.create_subprocess_exec(
        *(python, "-I", "-S", "-c", code),
        user=65534,
        group=65534,
        stdout=PIPE,
        stderr=STDOUT,
    )
    return (await child.communicate())[0].decode()


@pytest.mark.needs("root")
def test_a_peer_is_known_by_its_user_and_not_by_its_group() -> None:
    os.setegid(65534)
    try:
        ours, peer = socket.socketpair()
    finally:
        os.setegid(os.getgid())
    with ours, peer:
        assert peer_uid(ours) == os.geteuid()


def test_a_configuration_needs_no_more_than_has_no_default() -> None:
    config = HelperConfig("/state", "/socket", "host-a", 0, 0)
    checked = check_fields("configuration", asdict(config), CONFIG)
    assert HelperConfig(**checked) == config
