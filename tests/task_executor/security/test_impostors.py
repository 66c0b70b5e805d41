"""Another process at the helper's socket receives nothing, and the path of the socket is
checked.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegrain.credentials import write_credentials
from finegrain.errors import ConfigurationError
from task_executor.helper.launch import HelperConfig, HelperNotStarted, start_helper
from task_executor.host.helper_client import HelperClient, HelperUnavailable
from task_executor.membership import CREDENTIALS_FILE
from task_executor.options import TaskExecutorOptions
from task_executor.service.prepared import prepare
from tests.support import identities

pytestmark = pytest.mark.needs("nobody-user")

IMPOSTOR = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1]); server.listen()
print("up", flush=True)
while True:
    peer, _ = server.accept()
    print("heard", peer.recv(1 << 16), flush=True)
"""


@pytest.fixture
def impostor() -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    folder = Path(tempfile.mkdtemp(prefix="fg-impostor-"))  # user nobody must enter it
    os.chown(folder, 65534, 65534)
    path = folder / "helper.sock"
    command = [sys.executable, "-I", "-c", IMPOSTOR, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield path, process
        process.kill()
    path.unlink()
    folder.rmdir()


def heard(process: subprocess.Popen[str], path: Path) -> list[str]:
    """Returns what the impostor received until the test connects to it."""
    with socket.socket(socket.AF_UNIX) as last:
        last.connect(str(path))
        last.sendall(b"goodbye")
        lines = []
        assert process.stdout is not None
        while "goodbye" not in (line := process.stdout.readline()):
            lines.append(line.strip())
    return lines


async def test_another_user_at_the_socket_is_told_nothing(
    impostor: tuple[Path, subprocess.Popen[str]], tmp_path: Path
) -> None:
    path, process = impostor
    config = HelperConfig(str(tmp_path / "state"), str(path), "host-a", 0, 0)
    with pytest.raises(HelperNotStarted, match="belongs to another user"):
        start_helper(config)
    with pytest.raises(HelperUnavailable):
        await HelperClient.connect(path, deadline_s=0.3)
    assert set(heard(process, path)) <= {"heard b''"}


@pytest.mark.parametrize(
    ("mode", "uid"),
    [
        pytest.param(0o700, 65534, id="another user's"),
        pytest.param(0o777, 0, id="open to everybody"),
    ],
)
@pytest.mark.parametrize("part", ["", "inside"], ids=["itself", "the directory above"])
def test_a_run_directory_that_others_can_write_to_is_refused(
    tmp_path: Path, mode: int, uid: int, part: str
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    run_dir.chmod(mode)
    os.chown(run_dir, uid, uid)
    (tmp_path / "state").mkdir()
    write_credentials(
        tmp_path / "state" / CREDENTIALS_FILE, identities.credentials("executor/host-a")
    )
    options = TaskExecutorOptions(
        state_dir=tmp_path / "state",
        run_dir=run_dir / part,
        managers=("127.0.0.1:1",),
    )
    with pytest.raises(ConfigurationError, match="cannot be trusted"):
        prepare(options)
    assert not list((tmp_path / "state").glob("helper/*"))
