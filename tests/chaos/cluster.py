"""The cluster of a chaos run: its processes by name, how they start, and how all of them end."""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import finegrain_client as fg
from resource_manager.storage.location import sqlite_url
from tests.chaos.daemons import Daemon, Executor, Place, eventually, executor, manager
from tests.chaos.job_master import Config
from tests.chaos.network import Network
from tests.e2e.driving import FINEGRAIN, free_address
from tests.support.membership import give_credentials
from tests.support.postgresql import PostgresqlServer

MANAGER_PORT, EXECUTOR_PORT = 7170, 7180


@dataclass(frozen=True)
class Shape:
    """What a cluster consists of."""

    managers: int = 1
    executors: int = 3
    masters: int = 3
    database: str = "sqlite"  # or postgresql
    network: bool = False  # whether every process has a separate network namespace
    lease_s: float = 30.0
    job_s_max: float = 25.0


class Cluster:
    """A cluster that starts and stops in order, and removes its files unless asked to keep them."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.seed = shape, seed
        # a short path, because sockets are in it
        self.folder = Path(tempfile.mkdtemp(prefix="fg-chaos-"))
        self.folder.chmod(0o711)
        (self.folder / "logs").mkdir()
        (self.folder / "journals").mkdir()
        # makes names of executors unique on this machine, because the kernel knows them
        self.mark = uuid.uuid4().hex[:6]
        self.network = Network() if shape.network else None
        self.postgresql = PostgresqlServer() if shape.database == "postgresql" else None
        database = ""
        if self.postgresql is not None:
            database = self.postgresql.url(self.postgresql.create_database())
        names = ["rm"] if shape.managers == 1 else [f"rm{n + 1}" for n in range(shape.managers)]
        places = {name: self._place(name) for name in names}
        self.addresses = [
            f"{places[name].host}:{MANAGER_PORT}" if self.network else free_address()
            for name in names
        ]
        # of the run itself, and of its job masters
        self.operator = give_credentials(self.folder, "operator/chaos", *self.addresses)
        self.user = give_credentials(self.folder, "user/alice", *self.addresses)
        self.managers: list[Daemon] = [
            manager(
                name,
                self.folder,
                places[name],
                address,
                database=database or self._shared_sqlite(),
                standby=shape.managers > 1,
            )
            for name, address in zip(names, self.addresses, strict=True)
        ]
        self.executors: list[Executor] = [self._executor(n) for n in range(shape.executors)]
        self.masters: list[Daemon] = []
        self.retired: list[Path] = []  # journals of job masters that were killed
        self._random = random.Random(seed)

    def _shared_sqlite(self) -> str:
        if self.shape.managers == 1:
            return ""
        return sqlite_url(self.folder / "books.db")

    def _place(self, name: str) -> Place:
        return self.network.node(name) if self.network else Place()

    def _executor(self, number: int) -> Executor:
        name = f"chaos-{self.mark}-{number}"
        place = self._place(name)
        address = f"{place.host}:{EXECUTOR_PORT}" if self.network else free_address()
        return executor(name, self.folder, place, address, ",".join(self.addresses))

    @property
    def hold_file(self) -> Path:
        return self.folder / "hold"

    @property
    def stop_file(self) -> Path:
        return self.folder / "stop"

    @property
    def journals(self) -> list[Path]:
        return sorted((self.folder / "journals").iterdir())

    def start(self) -> None:
        for each in self.managers:
            each.start()
        if len(self.managers) == 1:
            self.managers[0].await_serving()
        for each in self.executors:
            each.start()
        for each in self.executors:
            # Wait for all executors: until then, a request that no host can serve would wait for a
            # host that can serve it.
            eventually(each.has_registered, f"{each.name} registers")
        for number in range(self.shape.masters):
            self.add_master(f"master-{number}")

    def add_master(self, node: str) -> Daemon:
        """Adds a job master at a node. A job master that was killed is never restarted under its
        name.
        """
        name = f"{node}-{len(self.masters) + len(self.retired)}"
        config = Config(
            name=name,
            seed=self._random.getrandbits(32),
            addresses=self.addresses,
            credentials=str(self.user),
            journal=str(self.folder / "journals" / f"{name}.jsonl"),
            hold_file=str(self.hold_file),
            stop_file=str(self.stop_file),
            lease_s=self.shape.lease_s,
            job_s_max=self.shape.job_s_max,
        )
        path = self.folder / f"{name}.json"
        config.save(path)
        argv = (FINEGRAIN[0], "-m", "tests.chaos.job_master", str(path))
        master = Daemon(name, argv, self.folder, self._place(node))
        master.start()
        self.masters.append(master)
        return master

    def replace_master(self, master: Daemon) -> None:
        """Replaces a job master that was killed."""
        self.masters.remove(master)
        self.retired.append(self.folder / "journals" / f"{master.name}.jsonl")
        self.add_master(node_of(master))

    def connect(self) -> fg.Cluster:
        """Returns a client of the run itself, which is never cut off."""
        return fg.connect(credentials=self.operator, budget_s=60.0)

    def daemons(self) -> list[Daemon]:
        return [*self.managers, *self.executors, *self.masters]

    def heal(self) -> None:
        """Resumes all suspended processes and mends the network."""
        if self.network is not None:
            self.network.heal()
        for daemon in self.daemons():
            daemon.resume()

    def finish_masters(self) -> list[str]:
        """Lets the job masters end their jobs; returns failures, one per line."""
        self.stop_file.touch()
        wrong = []
        for master in self.masters:
            try:
                code = master.process.wait(180) if master.process else 0
            except Exception as error:
                wrong.append(f"{master.name} did not end: {error}")
                continue
            if code:
                wrong.append(f"{master.name} ended with {code}: {master.last_words()}")
        return wrong

    def stop(self) -> list[str]:
        """Stops all daemons as planned; returns failures, one per line."""
        wrong = []
        for daemon in (*self.executors, *self.managers):
            if not daemon.runs:
                continue
            try:
                code = daemon.end()
            except Exception as error:
                wrong.append(f"{daemon.name} did not stop: {error}")
            else:
                if code:
                    wrong.append(f"{daemon.name} stopped with exit code {code}")
        return wrong

    def put_down(self) -> None:
        """Ends all processes after a failed run, with their slots freed as far as possible."""
        for daemon in self.daemons():
            daemon.resume()
        for master in self.masters:
            if master.runs:
                master.kill()
        for each in self.executors:
            if not each.runs and each.starts:
                each.start()
                eventually(lambda each=each: not each.runs or each.note(), "back", 30)  # type: ignore[misc]
        self.stop()
        for daemon in self.daemons():
            if daemon.runs:
                daemon.kill()

    def close(self, *, keep: bool) -> None:
        """Removes temporary files; `keep` leaves the folder with logs and journals."""
        if self.network is not None:
            self.network.close()
        if self.postgresql is not None:
            self.postgresql.stop()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def node_of(master: Daemon) -> str:
    return master.name.rpartition("-")[0]


def node_of_journal(path: Path) -> str:
    return path.stem.rpartition("-")[0]
