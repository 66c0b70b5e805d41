"""Measures how long a cluster has no leader. Checks that a replaced leader changes nothing any
more.

    .venv/bin/python -m bench.takeover [--trials 100] [--sqlite-trials 20] [--json]

Two real resource managers with `--standby` share a real database. Light executors check epochs like
real executors, and a job master requests slots all the time. On PostgreSQL, the benchmark uses
three faults one after the other: it kills the leader, stops the leader (SIGSTOP), and stops the
leader inside a write transaction. The benchmark continues a stopped leader after the other resource
manager has taken over. On SQLite, the benchmark kills the leader.

The benchmark prints two times from the fault, in seconds: until the new leader has committed its
epoch, and until the new leader acknowledges the first request of the job master. The job master
keeps its list of addresses. Four events count as violations: a row that was written while another
process led (a trigger in the database checks this), an epoch that falls, a command of an older
epoch that an executor executed, and a gap or a repeated event in the job's stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import finegrain_client as fg
from bench.identities import AnyExecutor, authority_of, own_of
from bench.light_cluster import LightExecutor
from bench.stoppable_rm import PLACES, StoppableManager
from finegrain.certificates.authority import Authority
from finegrain.errors import FinegrainError
from finegrain.join_token import sha256_hex
from finegrain.options import ListenOptions
from finegrain.rpc.access import TASK_EXECUTOR_ACCESS
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.trust import Trust
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.task_executor_pb2_grpc import (
    TaskExecutorServiceServicer,
    add_TaskExecutorServiceServicer_to_server,
)
from resource_manager.service.identities.own import write_authority
from task_executor.engine.command_fence import CommandFence, CommandNumbers
from task_executor.service.manager_link import ManagerLink
from tests.support.postgresql import PostgresqlServer

PATIENCE_S = 60.0
AFTER_WAKING_S = 1.0
EXECUTORS = 2

AUDIT = """
    CREATE TABLE audit (place bigserial, who text, holder text, rm_epoch bigint);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit (who, holder, rm_epoch)
            SELECT current_setting('application_name'), holder, rm_epoch FROM leadership;
        RETURN NULL;
    END $$;
    """
AUDITED = ("jobs", "requests", "slots", "executors", "job_events", "cluster_events", "counters")


# the typed base is abstract; the base at runtime answers undefined calls with UNIMPLEMENTED
if TYPE_CHECKING:
    _Servicer = object
else:
    _Servicer = TaskExecutorServiceServicer


# Executors that find the leader like real executors, and record the commands that executors
# receive.


class Executors(_Servicer):
    """Runs light executors that check epochs like real executors."""

    def __init__(self, managers: Sequence[str], authority: Authority) -> None:
        self._managers = tuple(managers)
        self._authority = authority
        self._all = {f"host-{n}": LightExecutor(f"host-{n}") for n in range(EXECUTORS)}
        self._fences: dict[str, CommandFence[Any]] = {name: CommandFence() for name in self._all}
        self._carried_out = dict.fromkeys(self._all, 0)
        self._address = ""
        self.refused = 0  # commands of an older epoch
        self.violations: list[str] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = GuardedServer(
            ListenOptions("127.0.0.1:0"),
            TASK_EXECUTOR_ACCESS,
            AnyExecutor(self._authority),
            Trust(self._authority.cluster),
        )
        server.add(add_TaskExecutorServiceServicer_to_server, self)
        self._address = await server.start()
        tasks = [asyncio.create_task(self._follow(each)) for each in self._all.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.stop(0)

    async def _follow(self, executor: LightExecutor) -> None:
        who = f"executor/{executor.executor_id}"
        link = ManagerLink(self._managers, own_of(self._authority, who))
        fence = self._fences[executor.executor_id]
        registered = False
        while True:
            try:
                if not registered:
                    executor.command_number = 0
                    answer = await link.register(executor.registration(self._address))
                    fence.register(answer.rm_epoch, answer.registration_number)
                    executor.rm_epoch = answer.rm_epoch
                    executor.registration_number = answer.registration_number
                    registered = True
                report = rm_pb2.ReportSlotsRequest(
                    executor_id=executor.executor_id,
                    instance_id=executor.instance_id,
                    registration_number=executor.registration_number,
                    report=executor.state(),
                )
                told = await link.report(report)
                fence.check_epoch(told.rm_epoch)
                registered = not told.register_again
                for each in told.unowned_slots:
                    executor.slots.pop(each.allocation_id, None)
                await asyncio.sleep(0.2)
            except FinegrainError as error:
                registered = registered and error.reason.value != "STALE_REGISTRATION"
                await asyncio.sleep(await link.next_address(error))

    async def AllocateSlots(self, request: Any, context: Any) -> Any:
        return self._admit(request, LightExecutor.allocate)

    async def FreeSlots(self, request: Any, context: Any) -> Any:
        return self._admit(request, LightExecutor.free)

    def _admit(self, request: Any, carry_out: Callable[[LightExecutor, Any], Any]) -> Any:
        name, epoch = request.executor_id, request.rm_epoch
        digest = sha256_hex(request.SerializeToString(deterministic=True).hex())
        numbers = CommandNumbers(epoch, request.registration_number, request.command_number, digest)
        fence = self._fences[name]
        self.refused += epoch < fence.rm_epoch
        known = fence.admit(numbers)
        if known is not None:
            return known
        if epoch < self._carried_out[name]:
            self.violations.append(f"{name} carried out a command of epoch {epoch}")
        self._carried_out[name] = epoch
        executor = self._all[name]
        executor.rm_epoch = epoch
        answer = carry_out(executor, request)
        fence.record(numbers, answer)
        fence.contained(numbers)
        return answer


class Asker:
    """A job master that requests one slot after the other."""

    def __init__(self, own: OwnCertificate) -> None:
        self._own = own
        self.acknowledged: list[float] = []  # moments
        self.granted = 0
        self.violations: list[str] = []

    async def after(self, moment: float) -> float:
        """Waits for the first acknowledgment after a moment. Returns the time of this
        acknowledgment.
        """
        await until(lambda: self.acknowledged[-1] > moment, "requests are acknowledged")
        return next(each for each in self.acknowledged if each > moment)

    @asynccontextmanager
    async def asking(self, addresses: Sequence[str]) -> AsyncIterator[None]:
        async with (
            fg.connect(list(addresses), credentials=self._own.credentials) as cluster,
            cluster.job("takeover") as job,
        ):
            tasks = [
                asyncio.create_task(self._ask(job)),
                asyncio.create_task(self._hear(job)),
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(outcome, Exception):
                        self.violations.append(f"the job master failed: {outcome!r}")

    async def _ask(self, job: fg.Job) -> None:
        using: set[asyncio.Task[None]] = set()
        while True:
            (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=10))
            self.acknowledged.append(time.monotonic())
            task = asyncio.create_task(self._use(request))
            using.add(task)
            task.add_done_callback(using.discard)
            await asyncio.sleep(0.01)

    async def _use(self, request: fg.Request) -> None:
        with suppress(fg.JobEnded):  # the measurement has ended
            slot = await request.granted()
            self.granted += 1
            await slot.release()

    async def _hear(self, job: fg.Job) -> None:
        last = 0
        async for event in job.events():
            if last and event.sequence != last + 1:
                self.violations.append(f"event {event.sequence} followed {last}")
            last = event.sequence


# Trials.


@dataclass
class Trial:
    """The figures of one fault."""

    fault: str
    led_s: float  # seconds until the next epoch was committed
    acknowledged_s: float  # seconds until the first request was acknowledged afterwards


@dataclass
class Outcome:
    """The figures of all faults on one database."""

    database: str
    trials: list[Trial] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    commands_refused: int = 0
    slots_granted: int = 0
    rows_audited: int = 0
    unasked: int = 0  # increases of the epoch without an injected fault


class Books:
    """Reads the leadership from the database, in the process of the benchmark."""

    def __init__(self, leadership: Callable[[], tuple[int, str]]) -> None:
        self.leadership = leadership

    async def led_above(self, epoch: int) -> tuple[int, str, float]:
        """Waits for a leader with a higher epoch. Returns this epoch, the address of the leader,
        and the time.
        """
        until = time.monotonic() + PATIENCE_S
        while True:
            found, address = await asyncio.to_thread(self.leadership)
            if found > epoch and address:
                return found, address, time.monotonic()
            if time.monotonic() > until:
                raise TimeoutError(f"no process leads above epoch {epoch}")
            await asyncio.sleep(0.005)


async def until(check: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(what)
        await asyncio.sleep(0.002)


async def run_trials(
    managers: Sequence[StoppableManager], books: Books, faults: Sequence[str], outcome: Outcome
) -> None:
    by_address = {each.address: each for each in managers}
    authority = authority_of(next(iter(by_address.values())).state_dir)
    executors = Executors(list(by_address), authority)
    asker = Asker(own_of(authority, "user/alice"))
    async with executors.serving(), asker.asking(list(by_address)):
        await until(lambda: asker.granted > 5, "slots are granted")
        epoch, address, _ = await books.led_above(0)
        for number, fault in enumerate(faults):
            await asyncio.sleep(0.3 + 0.05 * (number % 7))
            now, address, _ = await books.led_above(0)
            outcome.unasked += now - epoch  # the host was too busy for a renewal of the lease
            epoch = now
            leader = by_address[address]
            waits = next(each for each in managers if each is not leader)
            at = await strike(leader, fault)
            epoch, address, led_at = await books.led_above(epoch)
            if by_address[address] is not waits:
                outcome.violations.append(f"{leader.name} led again after: {fault}")
            first = await asker.after(led_at)
            outcome.trials.append(Trial(fault, led_at - at, first - at))
            say(f"{number + 1}/{len(faults)} {fault}: {led_at - at:.2f} s, {first - at:.2f} s")
            await recover(leader, fault)
            if fault != "kill -9":
                await asyncio.sleep(AFTER_WAKING_S)
    outcome.violations += executors.violations + asker.violations
    outcome.commands_refused += executors.refused
    outcome.slots_granted += asker.granted


async def strike(leader: StoppableManager, fault: str) -> float:
    """Injects the fault; returns the time of the fault."""
    if fault == "kill -9":
        at = time.monotonic()
        os.kill(leader.pid, signal.SIGKILL)
        return at
    if fault == "SIGSTOP":
        at = time.monotonic()
        os.kill(leader.pid, signal.SIGSTOP)
        return at
    leader.stop_file.write_text(fault.removeprefix("stopped "))
    await until(leader.is_stopped, "it stops inside a transaction")
    return time.monotonic()


async def recover(leader: StoppableManager, fault: str) -> None:
    """Lets the earlier leader return, and waits until it is a standby."""
    waited = leader.said("standing_by")
    if fault == "kill -9":
        leader.end()
        leader.start()
    else:
        os.kill(leader.pid, signal.SIGCONT)
    await until(lambda: leader.said("standing_by") > waited, "the other stands by")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def two_managers(database: Callable[[str], str]) -> AsyncIterator[list[StoppableManager]]:
    """Starts two resource managers in a new folder. Prints their logs if the measurement fails."""
    with tempfile.TemporaryDirectory(prefix="fg-takeover-") as name:
        folder = Path(name)
        for state_dir in (folder / "rm-a", folder / "rm-b"):
            state_dir.mkdir(mode=0o711)
        authority = authority_of(folder / "rm-a")
        (folder / "rm-b" / "certificates").mkdir(mode=0o700)
        write_authority(folder / "rm-b", authority)
        managers = [StoppableManager(each, folder, database(each)) for each in ("rm-a", "rm-b")]
        try:
            for each, event in zip(managers, ("serving", "standing_by"), strict=True):
                each.start()
                await until(lambda each=each, event=event: each.said(event) > 0, event)  # type: ignore[misc]
            yield managers
        except BaseException:
            for each in managers:
                say((folder / f"{each.name}.log").read_text()[-3000:])
            raise
        finally:
            for each in managers:
                each.end()


async def on_postgresql(trials: int) -> Outcome:
    """Injects faults on PostgreSQL one after the other: `kill -9`, SIGSTOP, and a stop at each
    place of a transaction.
    """
    import psycopg

    outcome = Outcome("postgresql")
    stops = [f"stopped {place}" for place in PLACES]
    cycle = [kind for stop in stops for kind in ("kill -9", "SIGSTOP", stop)]
    faults = [cycle[n % len(cycle)] for n in range(trials)]
    async with AsyncExitStack() as stack:
        server = PostgresqlServer()
        stack.callback(server.stop)
        name = server.create_database()
        url = server.url(name)
        managers = await stack.enter_async_context(
            two_managers(lambda who: f"{url}&application_name={who}")
        )
        looking = psycopg.connect(url, autocommit=True)
        stack.callback(looking.close)
        looking.execute(AUDIT)
        for table in AUDITED:
            looking.execute(
                f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION note()"
            )

        def leadership() -> tuple[int, str]:
            row = looking.execute("SELECT rm_epoch, address FROM leadership").fetchone()
            assert row is not None
            return int(row[0]), str(row[1])

        await run_trials(managers, Books(leadership), faults, outcome)
        written = looking.execute(
            "SELECT who, holder, rm_epoch FROM audit ORDER BY place"
        ).fetchall()
        names = {each.address: each.name for each in managers}
        outcome.rows_audited = len(written)
        last = 0
        for who, holder, epoch in written:
            if names[str(holder).split(" ")[1]] != who:
                outcome.violations.append(f"{who} wrote while {holder} led at epoch {epoch}")
            if epoch < last:
                outcome.violations.append(f"epoch {epoch} was written after {last}")
            last = epoch
    return outcome


async def on_sqlite(trials: int) -> Outcome:
    """Injects `kill -9` on SQLite."""
    outcome = Outcome("sqlite")
    with tempfile.TemporaryDirectory(prefix="fg-takeover-db-") as name:
        path = Path(name) / "books.db"
        async with two_managers(lambda _who: f"sqlite:///{path}") as managers:

            def leadership() -> tuple[int, str]:
                with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True) as connection:
                    row = connection.execute("SELECT rm_epoch, address FROM leadership").fetchone()
                connection.close()
                return int(row[0]), str(row[1])

            await run_trials(managers, Books(leadership), ["kill -9"] * trials, outcome)
    return outcome


def spread(seconds: Sequence[float]) -> str:
    """Returns p50, p99 and the maximum as text."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{statistics.median(ordered):5.2f} {p99:5.2f} {ordered[-1]:5.2f}"


def show(outcome: Outcome) -> None:
    """Prints the table of one database."""
    print(f"{outcome.database}: seconds (p50, p99, longest)")
    kinds = [*dict.fromkeys(each.fault for each in outcome.trials), "all"]
    for kind in kinds:
        chosen = [each for each in outcome.trials if kind in (each.fault, "all")]
        led, answered = (
            spread([each.led_s for each in chosen]),
            spread([each.acknowledged_s for each in chosen]),
        )
        print(f"  {kind:26} {len(chosen):4}  leads {led}   acknowledges {answered}")
    print(
        f"  violations {len(outcome.violations)}, commands of older epochs refused "
        f"{outcome.commands_refused}, slots granted {outcome.slots_granted}, writes audited "
        f"{outcome.rows_audited}, epochs raised between trials {outcome.unasked}"
    )
    for each in outcome.violations[:20]:
        print(f"    {each}")


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=100, help="on PostgreSQL")
    parser.add_argument("--sqlite-trials", type=int, default=20, help="on SQLite")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    given = parser.parse_args()
    outcomes = []
    if given.trials:
        outcomes.append(asyncio.run(on_postgresql(given.trials)))
    if given.sqlite_trials:
        outcomes.append(asyncio.run(on_sqlite(given.sqlite_trials)))
    if given.json:
        from dataclasses import asdict

        print(json.dumps([asdict(each) for each in outcomes], indent=1))
    else:
        for each in outcomes:
            show(each)
    return 1 if any(each.violations for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
