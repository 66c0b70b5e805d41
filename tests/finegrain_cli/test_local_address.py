"""The address of `finegrain up` when its state directory is used again."""

from __future__ import annotations

import socket
from pathlib import Path

from finegrain.options import ListenOptions
from finegrain_cli.local.address import previous_address, write_address

ANYWHERE = ListenOptions("127.0.0.1:0", "")


def test_it_listens_where_it_did(tmp_path: Path) -> None:
    assert previous_address(tmp_path, ANYWHERE) == ANYWHERE  # it never did
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        former = f"127.0.0.1:{taken.getsockname()[1]}"
        write_address(tmp_path, former)
        assert previous_address(tmp_path, ANYWHERE) == ANYWHERE  # another process has that port now
    assert previous_address(tmp_path, ANYWHERE).address == former
    said = ListenOptions("127.0.0.1:7170", "")
    assert previous_address(tmp_path, said) == said
    write_address(tmp_path, "127.0.0.1:99999")
    assert previous_address(tmp_path, ANYWHERE) == ANYWHERE
