"""`finegrain slot park` and `unpark`, through real daemons that are killed meanwhile.

The executor plays four GPUs. The test uses a `cuda-checkpoint` for tests.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.driving import Daemon, Daemons, eventually, finish, read_until, unique
from tests.support.cuda_checkpoint.fake_program import CudaProcesses

pytestmark = pytest.mark.slow

SMALL = ("--cpu", "0.1", "--memory", "32M")
WORK = """
echo running > {folder}/processes/$$
i=0
echo started $$
while read go; do
  until [ "$(cat {folder}/processes/$$)" = running ]; do sleep 0.05; done
  i=$((i+1)); echo step $i
done
"""


class Cluster:
    """A resource manager and an executor with four GPUs."""

    def __init__(self, daemons: Daemons, executor: Daemon, cuda: CudaProcesses) -> None:
        self.daemons, self.executor, self.cuda, self.cli = daemons, executor, cuda, daemons.cli

    def works(self, *options: str) -> tuple[subprocess.Popen[bytes], str]:
        """Starts a command that uses a GPU; returns it and the id of its slot."""
        known = {each["allocation_id"] for each in self.cli.items("slots")}
        script = WORK.format(folder=self.cuda.folder)
        command = ("run", *SMALL, "-i", *options, "--", "sh", "-c", script)
        process = self.cli.start(*command, stdin=subprocess.PIPE)
        read_until(process, b"started")
        (slot,) = {each["allocation_id"] for each in self.cli.items("slots")} - known
        return process, slot

    def slot(self, slot_id: str) -> dict[str, Any]:
        (slot,) = self.cli.items("slots", slot_id)
        return slot

    def gpus_in_use(self) -> list[str]:
        """GPUs that slots have, by UUID."""
        devices = [each["assignment"] or {} for each in self.cli.items("slots")]
        return [each["uuid"] for one in devices for each in one.get("devices", ())]

    def shown(self, slot_id: str) -> str:
        """The state of a slot in the table."""
        lines = [
            line for line in self.cli("slots", "-o", "wide").text.splitlines() if slot_id in line
        ]
        return lines[0].split()[3]

    def restart_all(self) -> None:
        """Kills the resource manager and the front of the executor, and starts them again."""
        for daemon in (self.daemons.manager, self.executor):
            daemon.kill()
            daemon.start()
            daemon.endpoint()  # it serves
        self.daemons.await_executors(self.cli.items("executors")[0]["executor_id"])


@pytest.fixture
def cluster(daemons: Daemons, home: Path) -> Iterator[Cluster]:
    cuda = CudaProcesses()
    folder = home / unique("park")
    folder.mkdir()
    config = folder / "finegrain.toml"
    config.write_text('[executor]\nfake_gpus = "l40s-x4"\ngpu_parking = "same-gpu"\n')
    name = unique("gpus")
    executor = daemons.executor(name)
    executor.cli = replace(
        executor.cli, extra={**cuda.environment, "FINEGRAIN_CONFIG": str(config)}
    )
    daemons.manager.start()
    daemons.manager.endpoint()
    executor.start()
    daemons.await_executors(name)
    yield Cluster(daemons, executor, cuda)
    cuda.clean_up()


def test_a_parked_slot_lends_its_gpus_and_its_work_goes_on_where_it_was(cluster: Cluster) -> None:
    cli = cluster.cli
    work, slot = cluster.works("--gpu", "4")
    assert work.stdin is not None
    work.stdin.write(b"go\n")
    work.stdin.flush()
    read_until(work, b"step 1")
    # Another command waits for a GPU, and gets the GPU as soon as the slot is parked.
    parked = cli("slot", "park", slot[:12])
    assert parked.code == 0, parked.stderr
    assert "PARKED" in parked.text
    assert cluster.shown(slot) == "PARKED"
    assert cluster.gpus_in_use() == []
    other, lent = cluster.works("--gpu", "1")
    assert cluster.slot(lent)["assignment"]["devices"][0]["minor"] == 0
    # The slot waits for its GPUs, as `explain` shows. Restarts of the daemons do not change this.
    assert cli("slot", "unpark", slot, "--no-wait").code == 0
    assert "other slots have its former share of gpu0" in cli("explain", slot).text
    cluster.restart_all()
    assert cluster.shown(slot) == "PARKED"
    work.stdin.write(b"go\n")
    work.stdin.flush()
    assert finish(other).code == 0
    read_until(work, b"step 2")
    eventually(lambda: cluster.shown(slot) == "ALLOCATED" or None, "it has its GPUs again")
    assert len(cluster.slot(slot)["assignment"]["devices"]) == 4
    kinds = [each["kind"] for each in cli.items("events", slot)]
    assert kinds.index("slot_parked") < kinds.index("slot_unparked")
    assert finish(work).code == 0


def test_what_fails_is_said_and_leaves_the_slot_as_it_was(cluster: Cluster) -> None:
    cli = cluster.cli
    work, slot = cluster.works("--gpu", "0.5")
    with cluster.cuda.failing("checkpoint"):
        refused = cli("slot", "park", slot)
        assert refused.code != 0
        assert "operation not supported" in refused.stderr
    assert cluster.shown(slot) == "ALLOCATED"
    plain, without = cluster.works()
    refused = cli("slot", "park", without)
    assert "a slot with GPUs" in refused.stderr
    for process in (work, plain):
        assert finish(process).code == 0
