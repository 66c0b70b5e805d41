"""A real helper whose tasks run as nobody, as in production. Their scratch is in a directory where
every user may write, as in `/tmp`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.host.helper_client import HelperClient
from tests.task_executor.helper.conftest import Host, leftover_groups

DAEMON_SECRET = "a-secret-of-the-daemon"


class HostOfNobody(Host):
    """A helper as in `Host`, but its tasks run as user nobody."""

    async def start(self, script: str, task_id: str = "task", **changes: object) -> int:
        user = {"uid": None, "gid": None, "env": {"PATH": os.environ["PATH"]}}
        return await super().start(script, task_id, **(user | changes))

    async def python(self, program: str, task_id: str = "task", **changes: object) -> int:
        argv = ["python3", "-I", "-c", program]
        return await self.start("", task_id, **({"argv": argv} | changes))


@pytest.fixture
async def nobody(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostOfNobody]:
    """Runs a helper, and checks afterwards that nothing of it is left."""
    place = Path(tempfile.mkdtemp(prefix="fg-security-"))
    place.chmod(0o711)
    scratch = place / "tmp"
    scratch.mkdir()
    scratch.chmod(0o1777)
    monkeypatch.setenv("FINEGRAIN_TESTS_DAEMON_SECRET", DAEMON_SECRET)
    config = HelperConfig(
        state_dir=str(place / "state"),
        socket_path=str(place / "helper.sock"),
        executor_id=f"test-{uuid.uuid4().hex[:8]}",
        front_uid=os.getuid(),
        front_gid=os.getgid(),
        scratch_root=str(scratch),
    )
    pid = start_helper(config)
    host = HostOfNobody(config, pid, await HelperClient.connect(config.socket_path))
    try:
        yield host
        left = await host.clean_up()
        assert (left.slots, left.tasks) == ([], [])
        assert leftover_groups(config.executor_id) == []
        assert not list(scratch.glob("finegrain-task-*"))
    finally:
        await host.client.close()
        shutil.rmtree(place)
