"""Network ports of slots: which numbers an executor offers; no two slots have the same port."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from finegrain.errors import InvalidArgument, ResourceExhausted
from task_executor.host.network_ports import (
    NetworkPorts,
    claim_port,
    is_free,
    offered_ports,
    read_range,
)


@pytest.mark.parametrize(
    ("text", "ports"),
    [("20000-20002", [20000, 20001, 20002]), ("7-7", [7]), ("none", []), ("", [])],
)
def test_a_range_is_read(text: str, ports: list[int]) -> None:
    assert list(read_range(text)) == ports


@pytest.mark.parametrize("text", ["20000", "2-1", "0-5", "1-65536", "a-b", "1-2-3", "-5", "1-"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="task_ports"):
        read_range(text)


def test_ports_of_outgoing_connections_are_not_offered(tmp_path: Path) -> None:
    file = tmp_path / "ip_local_port_range"
    assert list(offered_ports(range(10, 14), file)) == [10, 11, 12, 13]  # no such file: all
    file.write_text("12\t500\n")
    assert list(offered_ports(range(10, 14), file)) == [10, 11]


@pytest.fixture
def used() -> Iterator[int]:
    """Yields a port on which a program of this host listens."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def free_ports(count: int) -> list[int]:
    """Returns ports that no program has at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return sorted(each.getsockname()[1] for each in sockets)
    finally:
        for each in sockets:
            each.close()


def test_a_port_in_use_is_not_given(used: int) -> None:
    assert not is_free(used)
    assert claim_port(used) is None
    (other,) = free_ports(1)
    assert NetworkPorts([used, other]).give("slot", 1) == (other,)


def test_two_executors_of_a_host_give_different_ports() -> None:
    offered = free_ports(3)
    one, two = NetworkPorts(offered), NetworkPorts(offered)
    first, second = one.give("slot", 2), two.give("slot", 1)
    assert sorted(first + second) == offered
    with pytest.raises(
        ResourceExhausted, match="2 network ports were requested, but only 1 are free"
    ):
        two.give("slot", 2)
    assert two.of("slot") == second
    one.take_back("slot")
    assert two.give("slot", 3) == tuple(offered)


def test_a_slot_keeps_its_ports_when_it_grows_and_shrinks() -> None:
    ports = NetworkPorts([1, 2, 3, 4], lambda _port: socket.socket())
    assert ports.give("a", 2) == (1, 2)
    assert ports.give("b", 1) == (3,)
    assert ports.give("a", 3) == (1, 2, 4)
    assert ports.give("a", 1) == (1,)
    assert ports.give("a", 0) == ()
    assert ports.of("b") == (3,)


def test_a_port_that_was_given_back_comes_again_after_all_others() -> None:
    ports = NetworkPorts([1, 2, 3], lambda _port: socket.socket())
    given: list[int] = []
    for _ in range(4):
        given += ports.give("slot", 1)
        ports.take_back("slot")
    assert given == [1, 2, 3, 1]


def test_ports_of_a_slot_are_adopted_although_its_tasks_use_them(used: int) -> None:
    ports = NetworkPorts([used])
    ports.adopt("slot", [used])
    assert ports.of("slot") == (used,)
    assert claim_port(used) is None
