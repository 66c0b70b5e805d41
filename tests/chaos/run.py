"""One chaos run: a cluster, its load, the faults, and the verdict.

Order: start, one fault after the other, regular checks at rest, heal, end, judge. A run that did
too little fails.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import finegrain_client as fg
from finegrain_cli.local.leftovers import find_leftovers
from tests.chaos import journal as j
from tests.chaos.cluster import Cluster, Shape, node_of_journal
from tests.chaos.daemons import LOST_TIMEOUT_S, eventually
from tests.chaos.excuses import Disturbance
from tests.chaos.faults import RM_STOP, Chaos, Fault, plan, write_plan
from tests.chaos.judge import (
    Master,
    grace_after_restart,
    judge_log,
    judge_losses,
    judge_masters,
    judge_requests,
    served_moments,
)
from tests.chaos.observer import Observer, slot_groups

REST_EVERY = 20
REST_S_MAX = 90.0
WARM_UP_S = 4.0


@dataclass(frozen=True)
class Settings:
    """Parameters of one run."""

    seed: int
    cycles: int
    groups: tuple[str, ...]
    shape: Shape = field(default_factory=Shape)
    length_s_max: float = 20.0  # longest stop or cut
    say: Callable[[str], None] = print


@dataclass
class Verdict:
    """The result of a run."""

    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    work: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    restart_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    samples: int = 0
    losses: int = 0
    rests: int = 0
    plan: list[Fault] = field(default_factory=list)
    folder: str = ""

    def summary(self) -> str:
        """Returns a few lines for people."""
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        work = ", ".join(
            f"{self.work[what]} {word}"
            for what, word in (
                (j.JOB, "jobs"),
                ("requests", "requests acknowledged"),
                (j.GRANTED, "slots used"),
                (j.TASK, "tasks"),
                (j.TASK_ENDED, "of them checked to the end"),
                (j.REFUSED, "refused"),
                (j.EVENT, "events"),
                (j.SLOT_LOST, "slots lost"),
            )
        )
        ends = ", ".join(f"{count} {state}" for state, count in sorted(self.ends.items()))
        lines = [
            f"faults: {faults or 'none'}; {self.losses} executors lost",
            f"work: {work}",
            f"ends: {ends}",
            f"looked {self.samples} times at limits, {self.rests} times at rest",
            f"took {self.seconds:.0f} s",
        ]
        if self.restart_s:
            lines.append(
                f"resource manager serves again: median {statistics.median(self.restart_s):.2f} s,"
                f" longest {max(self.restart_s):.2f} s"
            )
        return "\n".join(lines)


class Run:
    """One run from start to verdict."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        faults = plan(settings.seed, settings.groups, settings.cycles, settings.length_s_max)
        self.verdict = Verdict(plan=faults)
        self.cluster = Cluster(settings.shape, settings.seed)
        self.verdict.folder = str(self.cluster.folder)
        self.observer = Observer(self.cluster)
        self.chaos = Chaos(self.cluster)

    def to_the_end(self) -> Verdict:
        """Runs everything; removes the cluster, but its folder only if all checks passed."""
        begun = time.monotonic()
        wrong = self.verdict.wrong
        write_plan(self.cluster.folder / "plan.txt", self.verdict.plan)
        try:
            self._under_fire()
            self._end()
        except (Exception, KeyboardInterrupt) as error:
            wrong.append(f"the run broke off: {type(error).__name__}: {error}")
            self.chaos.settle()
            self.chaos.stop_keeping()
            self.cluster.put_down()
        finally:
            self.verdict.seconds = time.monotonic() - begun
            self._judge()
            self.observer.stop()
            wrong += self.left_behind()
            self.cluster.close(keep=bool(wrong))
        return self.verdict

    def _under_fire(self) -> None:
        self.cluster.start()
        self.observer.start()
        self.chaos.keep_running()
        time.sleep(WARM_UP_S)
        for number, fault in enumerate(self.verdict.plan, 1):
            self.settings.say(f"{time.strftime('%X')} {number:4} {fault}")
            self.chaos.carry_out(fault)
            if self.verdict.wrong or self.observer.seen.wrong or self.chaos.failures:
                break  # a run that ends early has shorter, clearer logs
            if number % REST_EVERY == 0 or number == len(self.verdict.plan):
                self._rest()
        self.verdict.wrong += self.chaos.failures

    def _rest(self) -> None:
        """Pauses load and faults, and checks that manager, slot tables and groups agree."""
        self.chaos.settle()
        self.cluster.heal()
        self.cluster.hold_file.touch()
        try:
            eventually(lambda: not self._differences(), "all agree at rest", REST_S_MAX)
            self.verdict.rests += 1
        except AssertionError as error:
            self.verdict.wrong += [str(error), *self._differences()]
        finally:
            self.cluster.hold_file.unlink()

    def _differences(self) -> list[str]:
        """Returns disagreements about the slots of executors."""
        found = []
        for executor in self.cluster.executors:
            try:
                books = self.observer.call(self.observer.client.executor(executor.name))
                saved = executor.saved_slots()
            except (fg.FinegrainError, OSError, ValueError) as error:
                found.append(f"{executor.name}: {error}")
                continue
            if str(books.state) != "ACTIVE" or books.unreachable_reason:
                found.append(f"{executor.name} is {books.state} {books.unreachable_reason}")
            known = {
                f"{each.allocation_id}.{each.generation}": str(each.state)
                for each in books.slot_list or ()
            }
            if known != saved:
                found.append(f"{executor.name}: books {known}, table {saved}")
            found += [
                f"{executor.name}: table {sorted(saved)}, {controller} groups {sorted(names)}"
                for controller, names in slot_groups(executor).items()
                if names != set(saved)
            ]
        return found

    # -- the end -----------------------------------------------------------------------------

    def _end(self) -> None:
        self.cluster.heal()
        self.verdict.wrong += self.cluster.finish_masters()
        lease_s = self.settings.shape.lease_s
        patience_s = lease_s + REST_S_MAX  # slots of killed job masters end with their leases
        try:
            eventually(lambda: not self._still_booked(), "the books come to zero", patience_s)
        except AssertionError as error:
            self.verdict.wrong += [str(error), *self._still_booked()]
        self._ask_for_the_ends()
        self.chaos.stop_keeping()
        names = frozenset(each.name for each in self.cluster.executors)
        self.chaos.disturbances.append(Disturbance("planned-stop", names, time.time()))
        self.verdict.wrong += self.cluster.stop()

    def _still_booked(self) -> list[str]:
        info = self.observer.call(self.observer.client.info())
        found = self._differences()
        if any(info.allocated.values()) or info.slots or any(info.pending_requests.values()):
            found.append(f"{info.slots} slots, {info.allocated}, {info.pending_requests} pending")
        if info.jobs:
            found.append(f"{info.jobs} jobs")
        return found

    def _ask_for_the_ends(self) -> None:
        states = list(fg.RequestState)
        listed = self.observer.call(self.observer.client.requests(states=states), 300.0)
        wrong, self.verdict.ends = judge_requests(
            self._masters(), {each.allocation_id: each for each in listed}
        )
        self.verdict.wrong += wrong

    def _masters(self) -> list[Master]:
        found = []
        for path in self.cluster.journals:
            master = Master(path.stem, node_of_journal(path), killed=path in self.cluster.retired)
            master.take(path)
            found.append(master)
        return found

    # -- the verdict -------------------------------------------------------------------------

    def _judge(self) -> None:
        verdict, seen = self.verdict, self.observer.seen
        verdict.faults, verdict.restart_s = self.chaos.done, self.chaos.restart_s
        verdict.samples = seen.samples
        verdict.wrong += seen.wrong
        lost, losses = judge_losses(seen.events, self.chaos.disturbances)
        verdict.wrong += lost
        verdict.losses = sum(len(each) for each in losses.values())
        served = [
            moment for each in self.cluster.managers for moment in served_moments(each.log_file)
        ]
        verdict.wrong += grace_after_restart(seen.events, served, LOST_TIMEOUT_S)
        masters = self._masters()
        for master in masters:
            verdict.work += master.counts
            verdict.work["requests"] += len(master.acknowledged)
        lease_s = self.settings.shape.lease_s
        verdict.wrong += judge_masters(masters, self.chaos.disturbances, losses, lease_s)
        # If a process is cut off from PostgreSQL for too long, the server ends its transaction.
        away = any("database" in each or each == RM_STOP for each in verdict.faults)
        on_postgresql = self.cluster.postgresql is not None
        forgiven = ("batch_dropped", "reload_failed", "Traceback") if away and on_postgresql else ()
        for daemon in (*self.cluster.managers, *self.cluster.executors):
            if daemon.log_file.exists():
                verdict.wrong += judge_log(daemon.log_file, forgiven)
        verdict.wrong += self._too_little()

    def _too_little(self) -> list[str]:
        """Returns what the run did too rarely to prove anything."""
        work, cycles = self.verdict.work, self.settings.cycles
        least = {
            j.JOB: 3,
            "requests": 2 * cycles,
            j.GRANTED: cycles // 2,
            j.TASK_ENDED: cycles // 3,
            j.CANCELLED: cycles // 10,
            j.RELEASED: cycles // 3,
        }
        found = [
            f"too little work: {work[what]} {what}, at least {number} expected"
            for what, number in least.items()
            if work[what] < max(1, number)
        ]
        missing = Counter(fault.kind for fault in self.verdict.plan) - self.verdict.faults
        if missing:
            found.append(f"faults not carried out: {dict(missing)}")
        if not self.verdict.samples or not self.verdict.rests:
            found.append("nobody looked")
        return found

    def left_behind(self) -> list[str]:
        """Returns processes and control groups that should have ended."""
        folder = self.cluster.folder
        folders = [each.state_dir for each in self.cluster.executors]
        return find_leftovers(folder, folder, folders)
