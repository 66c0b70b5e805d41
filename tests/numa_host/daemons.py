"""A resource manager and one executor that has the whole host, as root, without units.

Decides how they are started and found. The timeouts are long enough for an emulated host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import finegrain_client as fg
from finegrain.credentials import write_private_file
from finegrain.identity import Role
from finegrain.local_managers import OPERATOR_FILE
from finegrain_client.blocking import Cluster, Slot, Task
from tests.e2e.driving import free_address
from tests.systemd_host.machine import eventually, groups_left

ANSWER_S = 300.0
PATIENT = ("--report-interval", "2s", "--lost-timeout", "120s")
SPIN = ("sh", "-c", "while :; do :; done")


class Daemon:
    """A daemon that is started, killed and started again."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self.state = folder / name
        self.log = folder / f"{name}.log"
        self.command = [sys.executable, "-m", "finegrain_cli", *command]
        self.command += ["--state-dir", str(self.state), "--log-format", "json"]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Returns once it serves."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*self.command, *more], stdout=log, stderr=log)
        eventually(self._serves, f"{self.state.name} serves")

    def _serves(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            note: dict[str, Any] = json.loads((self.state / "endpoint.json").read_text())
        except (OSError, ValueError):
            return False
        return bool(note["pid"] == self.process.pid)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(ANSWER_S)


class Host:
    """This host as a cluster of one executor."""

    name = "numa-host"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fg-numa-"))
        self.address = free_address()
        no_metrics = ("--metrics-listen", "none")
        self.manager = Daemon(
            self.folder, "rm", "rm", "serve", "--listen", self.address, *no_metrics, *PATIENT
        )
        self.credentials = self.folder / "rm" / OPERATOR_FILE
        self.token = self.folder / "join.token"
        self.executor = Daemon(
            self.folder, "executor", "executor", "serve", "--executor-id", self.name,
            "--run-dir", str(self.folder / "run"), "--manager", self.address,
            "--listen", "127.0.0.1:0", "--join-token-file", str(self.token),
            "--allow-root-tasks", "--task-user", "self", "--task-kill-grace", "2s",
            "--kubelet-dir", "none", *no_metrics,
        )  # fmt: skip

    def start(self) -> None:
        self.manager.start()
        with self.cluster() as cluster:
            token = cluster.create_token(Role.EXECUTOR, self.name, ttl_s=900)
        write_private_file(self.token, token.token.encode())
        self.executor.start()
        with self.cluster() as cluster:
            eventually(cluster.executors, "the executor has registered")

    def stop(self) -> None:
        """Stops everything. Raises AssertionError if something of a slot is left."""
        if self.executor.process is not None and self.executor.process.poll() is not None:
            self.executor.start()
        if self.executor.process is not None:
            self._release_all()
        self.executor.stop()
        self.manager.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not groups_left(), groups_left()

    def _release_all(self) -> None:
        with self.cluster() as cluster:
            for job in cluster.jobs():
                cluster.terminate_job(job.job_id, grace_s=0)
            eventually(lambda: not cluster.slots(), "all slots are gone")

    def cluster(self) -> Cluster:
        return fg.blocking.connect(self.address, credentials=self.credentials, budget_s=ANSWER_S)

    def cli(self, *args: str) -> str:
        """Standard output of a command line."""
        environment = os.environ | {
            "FINEGRAIN_MANAGER": self.address,
            "FINEGRAIN_CREDENTIALS": str(self.credentials),
            "NO_COLOR": "1",
        }
        ran = subprocess.run(
            [sys.executable, "-m", "finegrain_cli", *args],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, f"{args}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def forget_settings(self) -> None:
        """Removes the settings that tests have made."""
        with self.cluster() as cluster:
            names = ("bind", "numa_strategy", "alignment", "reserved_cpus", "reserved_strict")
            cluster.set_host_policy(self.name, clear=names)

    def settled(self) -> None:
        """Waits until no slot of the last story is left."""
        with self.cluster() as cluster:
            eventually(lambda: not cluster.slots(), "the last story's slots are gone")

    @contextlib.contextmanager
    def slots(self, *wishes: fg.SlotSpec) -> Iterator[list[Slot]]:
        """Yields one slot for each request, and releases the slots at the end."""
        with self.cluster() as cluster, cluster.job("story", lease_s=900) as job:
            requests = job.request_slots(wishes)
            slots = [each.granted(timeout_s=ANSWER_S) for each in requests]
            yield slots
            for each in slots:
                if not each.has_ended:
                    each.release()


def spin(slot: Slot, command: Sequence[str] = SPIN) -> Task:
    """A task that uses all the cpu it gets."""
    return slot.run(list(command))
