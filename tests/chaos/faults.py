"""Plans a seeded sequence of faults, and executes them.

Order, targets and lengths follow from the seed alone. It records which process was disturbed from
when to when, because the judge allows some failures in this time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cluster import Cluster, node_of
from tests.chaos.daemons import Daemon, Executor, children_of, eventually
from tests.chaos.excuses import CUT_EXECUTOR_MASTER, Disturbance

LOOK_S = 0.2
STEPPED_DOWN = 4  # exit code of a resource manager that has lost leadership

RM_KILL = "rm-kill"
RM_STOP = "rm-stop"
FRONT_KILL = "front-kill"
HELPER_KILL = "helper-kill"
BOTH_KILL = "both-kill"
SUPERVISOR_KILL = "supervisor-kill"
FRONT_STOP = "front-stop"
HELPER_STOP = "helper-stop"
MASTER_KILL = "master-kill"
MASTER_STOP = "master-stop"
CUT_RM_EXECUTOR = "cut-rm-executor"
CUT_RM_MASTER = "cut-rm-master"
SLOW_LINE = "slow-line"
DATABASE_KILL = "database-kill"
DATABASE_RESTART = "database-restart"

KINDS: dict[str, tuple[str, ...]] = {
    "rm": (RM_KILL,),
    "executor": (FRONT_KILL, HELPER_KILL, BOTH_KILL),
    "supervisor": (SUPERVISOR_KILL,),
    "stop": (RM_STOP, FRONT_STOP, HELPER_STOP, MASTER_STOP),
    "master": (MASTER_KILL,),
    "network": (CUT_RM_EXECUTOR, CUT_RM_MASTER, CUT_EXECUTOR_MASTER, SLOW_LINE),
    "database": (DATABASE_KILL, DATABASE_RESTART),
}
"""Kinds of faults by the group name of the command line."""


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, targets (numbers modulo their count), length and time."""

    kind: str
    which: int
    other: int
    pause_s: float  # before the fault
    length_s: float  # of the fault
    one_way: int = 0  # cuts: 0 both ways, 1 there, 2 back
    again: bool = False  # kills: again while the process starts
    together: bool = False  # the next fault begins in the meantime

    def __str__(self) -> str:
        way = ("", " one way", " the other way")[self.one_way]
        twice = " twice" if self.again else ""
        return (
            f"{self.kind}{way}{twice} #{self.which},{self.other}"
            f" after {self.pause_s:.2f} s for {self.length_s:.2f} s{' with' * self.together}"
        )


def plan(seed: int, groups: Sequence[str], cycles: int, length_s_max: float = 20.0) -> list[Fault]:
    """Returns the sequence: every kind equally often, in random order."""
    chance = random.Random(seed)
    kinds = [kind for group in groups for kind in KINDS[group]]
    order = [kinds[n % len(kinds)] for n in range(cycles)]
    chance.shuffle(order)
    return [_fault(kind, chance, length_s_max) for kind in order]


def _fault(kind: str, chance: random.Random, length_s_max: float) -> Fault:
    short = kind in (RM_KILL, FRONT_KILL, HELPER_KILL, BOTH_KILL, SUPERVISOR_KILL, MASTER_KILL)
    length_s = chance.choice((0.0, 0.0, chance.uniform(0, 1.5))) if short else 0.0
    if not short:
        length_s = chance.uniform(1.0, length_s_max * (1.0 if chance.random() < 0.5 else 0.25))
    return Fault(
        kind=kind,
        which=chance.randrange(1000),
        other=chance.randrange(1000),
        pause_s=chance.uniform(0.1, 1.6),
        length_s=length_s,
        one_way=chance.choice((0, 0, 1, 2)) if kind.startswith("cut") else 0,
        again=short and chance.random() < 0.2,
        # The server ends with the thread that starts it, so this thread must not end early.
        together=not short and not kind.startswith("database") and chance.random() < 0.4,
    )


class Chaos:
    """Executes faults: one at a time for each process, in parallel for different processes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.disturbances: list[Disturbance] = []
        self.done: Counter[str] = Counter()
        self.restart_s: list[float] = []  # of resource managers: from the start to serving
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._suffering: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._taken_over: defaultdict[str, set[int]] = defaultdict(set)  # tasks by executor
        self._under_way: list[threading.Thread] = []
        self._keeping = threading.Event()
        self._keeper: threading.Thread | None = None
        # time, name and exit code of processes that ended by themselves
        self.own_ends: list[tuple[float, str, int]] = []
        self._acts: dict[str, Callable[[Fault], None]] = {
            RM_KILL: self._kill_manager,
            RM_STOP: self._stop_manager,
            FRONT_KILL: self._kill_front,
            HELPER_KILL: self._kill_helper,
            BOTH_KILL: self._kill_both,
            SUPERVISOR_KILL: self._kill_supervisor,
            FRONT_STOP: self._stop_front,
            HELPER_STOP: self._stop_helper,
            MASTER_KILL: self._kill_master,
            MASTER_STOP: self._stop_master,
            CUT_RM_EXECUTOR: self._cut_executor,
            CUT_RM_MASTER: self._cut_master,
            CUT_EXECUTOR_MASTER: self._cut_work,
            SLOW_LINE: self._slow_line,
            DATABASE_KILL: self._kill_database,
            DATABASE_RESTART: self._restart_database,
        }

    def carry_out(self, fault: Fault) -> None:
        """Waits, executes the fault and reverts it; if it is `together`, in a thread."""
        time.sleep(fault.pause_s)
        if fault.together:
            thread = threading.Thread(target=self._carry_out, args=(fault,))
            thread.start()
            self._under_way.append(thread)
        else:
            self._carry_out(fault)

    def _carry_out(self, fault: Fault) -> None:
        try:
            self._acts[fault.kind](fault)
        except Exception as error:
            self.failures.append(f"{fault}: {type(error).__name__}: {error}")
        else:
            with self._lock:
                self.done[fault.kind] += 1

    def keep_running(self) -> None:
        """Restarts processes that end by themselves, as a supervisor does, until `stop_keeping`."""
        self._keeping.clear()
        keeper = threading.Thread(target=self._keep)
        keeper.start()
        self._keeper = keeper

    def stop_keeping(self) -> None:
        self._keeping.set()
        if self._keeper is not None:
            self._keeper.join()

    def _keep(self) -> None:
        while not self._keeping.wait(LOOK_S):
            for daemon in (*self.cluster.managers, *self.cluster.executors):
                lock = self._suffering[daemon.name]
                if not lock.acquire(blocking=False):
                    continue  # a fault is using it
                try:
                    if daemon.process is not None and not daemon.runs:
                        self._ended(daemon, daemon.process.returncode)
                        daemon.start()
                finally:
                    lock.release()

    def _ended(self, daemon: Daemon, code: int) -> None:
        """Records an exit; only a resource manager may end by itself.

        It may do so without its database, or when it was replaced as the leader.
        """
        self.own_ends.append((time.time(), daemon.name, code))
        replaced = code == STEPPED_DOWN and len(self.cluster.managers) > 1
        without = any(
            "database" in each.names and each.end > time.time() - 60.0 for each in self.disturbances
        )
        if not (daemon in self.cluster.managers and (replaced or without)):
            self.failures.append(f"{daemon.name} ended with {code}: {daemon.last_words()}")

    def settle(self) -> None:
        """Waits for the faults that still run."""
        while self._under_way:
            self._under_way.pop().join()

    @contextmanager
    def disturbing(self, kind: str, *names: str) -> Iterator[None]:
        """Records that these are disturbed in this block; the first is locked for other faults."""
        with self._suffering[names[0]]:
            disturbance = Disturbance(kind, frozenset(names), time.time())
            with self._lock:
                self.disturbances.append(disturbance)
            try:
                yield
            finally:
                disturbance.end = time.time()

    # -- targets -----------------------------------------------------------------------------

    def _executor(self, fault: Fault) -> Executor:
        return self.cluster.executors[fault.which % len(self.cluster.executors)]

    def _master(self, number: int) -> Daemon:
        return self.cluster.masters[number % len(self.cluster.masters)]

    def leader(self) -> Daemon:
        """Returns the resource manager that leads."""
        managers = self.cluster.managers
        if len(managers) == 1:
            return managers[0]

        def look() -> Daemon | None:
            epoch, leader = max(((_serves(each), each) for each in managers), key=lambda e: e[0])
            return leader if epoch else None

        return eventually(look, "a resource manager leads")

    # -- resource managers -------------------------------------------------------------------

    def _kill_manager(self, fault: Fault) -> None:
        manager, standby = self.leader(), False
        if fault.which % 5 == 0 and len(self.cluster.managers) > 1:
            standby = True
            manager = self.cluster.managers[self.cluster.managers.index(manager) - 1]
        with self.disturbing(fault.kind, manager.name):
            manager.kill()
            begun = time.monotonic()
            if len(self.cluster.managers) > 1:
                able = not any(each.stopped for each in self.cluster.managers)
                self.leader()
                if able and not standby:  # a standby had to take over, and was able to
                    self.restart_s.append(time.monotonic() - begun)
            elif fault.again:
                manager.start()
            time.sleep(fault.length_s)
            if manager.runs:
                manager.kill()
            begun = time.monotonic()
            manager.start()
            if len(self.cluster.managers) == 1:
                manager.await_serving()
                self.restart_s.append(time.monotonic() - begun)

    def _stop_manager(self, fault: Fault) -> None:
        self._suspended(fault, self.leader())

    def _suspended(self, fault: Fault, daemon: Daemon) -> None:
        """Stops a daemon for a while (SIGSTOP)."""
        with self.disturbing(fault.kind, daemon.name):
            daemon.suspend()
            time.sleep(fault.length_s)
            daemon.resume()

    # -- executors ---------------------------------------------------------------------------

    def _kill_front(self, fault: Fault) -> None:
        self._kill_executor(fault, front=True, helper=False)

    def _kill_helper(self, fault: Fault) -> None:
        executor = self._executor(fault)
        self._spare_taken_over(executor)
        with self.disturbing(fault.kind, executor.name):
            executor.kill_helper()
            eventually(executor.helper_pid, f"{executor.name} has a helper again")

    def _kill_supervisor(self, fault: Fault) -> None:
        executor = self._executor(fault)
        with self.disturbing(fault.kind, executor.name):
            for pid in executor.supervisor_pids():
                self._taken_over[executor.name] |= set(children_of(pid))
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _spare_taken_over(self, executor: Executor) -> None:
        """Waits for the tasks of killed supervisors. Only the helper can reap these tasks. So if
        the helper is killed, too, their exit status is lost.
        """
        pids = self._taken_over.pop(executor.name, set())
        eventually(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids),
            f"the tasks of killed supervisors on {executor.name} have ended",
        )

    def _kill_both(self, fault: Fault) -> None:
        self._kill_executor(fault, front=True, helper=True)

    def _kill_executor(self, fault: Fault, *, front: bool, helper: bool) -> None:
        executor = self._executor(fault)
        if helper:
            self._spare_taken_over(executor)
        with self.disturbing(fault.kind, executor.name):
            if front:
                executor.kill()
            if helper:
                executor.kill_helper()
            time.sleep(fault.length_s)
            executor.start()
            if fault.again:
                time.sleep(fault.length_s)
                executor.kill()
                executor.start()
            executor.await_serving()

    def _stop_front(self, fault: Fault) -> None:
        self._suspended(fault, self._executor(fault))

    def _stop_helper(self, fault: Fault) -> None:
        executor = self._executor(fault)
        with self._suffering[executor.name], self.disturbing(fault.kind, f"{executor.name}/helper"):
            pid = eventually(executor.helper_pid, f"{executor.name} has a helper")
            os.kill(pid, signal.SIGSTOP)
            time.sleep(fault.length_s)
            os.kill(pid, signal.SIGCONT)

    # -- job masters -------------------------------------------------------------------------

    def _kill_master(self, fault: Fault) -> None:
        with self._suffering["masters"]:
            master = self._master(fault.which)
            master.kill()
            time.sleep(fault.length_s)
            self.cluster.replace_master(master)

    def _stop_master(self, fault: Fault) -> None:
        with self._suffering["masters"]:
            self._suspended(fault, self._master(fault.which))

    # -- the network -------------------------------------------------------------------------

    def _cut(self, fault: Fault, one: str, other: str) -> None:
        network = self.cluster.network
        assert network is not None
        if fault.one_way == 2:
            one, other = other, one
        with self.disturbing(fault.kind, f"{one}|{other}", one, other):
            network.cut(one, other, one_way=fault.one_way != 0)
            time.sleep(fault.length_s)
            network.mend(one, other)

    def _cut_executor(self, fault: Fault) -> None:
        self._cut(fault, self.leader().name, self._executor(fault).name)

    def _cut_master(self, fault: Fault) -> None:
        self._cut(fault, self.leader().name, node_of(self._master(fault.other)))

    def _cut_work(self, fault: Fault) -> None:
        self._cut(fault, self._executor(fault).name, node_of(self._master(fault.other)))

    def _slow_line(self, fault: Fault) -> None:
        network = self.cluster.network
        assert network is not None
        nodes = [self.leader().name, *(each.name for each in self.cluster.executors)]
        name = nodes[fault.which % len(nodes)]
        disturbed = nodes[1:] if name == nodes[0] else [name]
        with self.disturbing(fault.kind, f"{name}|", *disturbed, nodes[0]):
            network.slow(name)
            time.sleep(fault.length_s)
            network.fast(name)

    # -- the database ------------------------------------------------------------------------

    def _kill_database(self, fault: Fault) -> None:
        self._end_database(fault, at_once=True)

    def _restart_database(self, fault: Fault) -> None:
        self._end_database(fault, at_once=False)

    def _end_database(self, fault: Fault, *, at_once: bool) -> None:
        server = self.cluster.postgresql
        assert server is not None
        with self.disturbing(fault.kind, "database"):
            server.shut_down(at_once=at_once)
            time.sleep(fault.length_s)
            server.start_again()


def _serves(manager: Daemon) -> int:
    """Returns the epoch at which a manager leads, according to its log; 0: it does not lead."""
    if not manager.runs or manager.stopped:
        return 0
    for line in reversed(manager.said()):
        if '"restarting_as_standby"' in line or '"stepping_down"' in line:
            return 0
        if '"event": "serving"' in line:
            return int(json.loads(line)["rm_epoch"])
    return 0


def write_plan(path: Path, faults: Sequence[Fault]) -> None:
    """Writes one line per fault."""
    path.write_text("".join(f"{number:4} {fault}\n" for number, fault in enumerate(faults)))
