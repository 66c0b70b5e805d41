"""Tests of the process provider with real executors: started, found again, and removed."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from resource_manager.providers import process
from resource_manager.providers.process import ProcessProvider
from resource_manager.providers.process_executor import (
    OUTPUT_BYTES_MAX,
    Claim,
    ExecutorDirectory,
    read_claim,
)
from resource_manager.providers.process_sweep import stop_everything
from resource_manager.providers.process_tree import Process, this_process
from resource_manager.providers.provider import Observation, Presence, ProviderFailed
from tests.support.control_groups import groups_called
from tests.support.providers import (
    configuration,
    give_token,
    halves,
    join_token,
    joining,
    make_provider,
    processes_naming,
    provider_context,
)
from tests.support.rm_service import eventually

pytestmark = pytest.mark.full

KIND = "process"
PREFIX = f"half-{uuid.uuid4().hex[:8]}"
ONE, TWO = f"{PREFIX}-1", f"{PREFIX}-2"
"""Ids of executors. The kernel's groups have these names, and other tests run on this host."""


class Host:
    """A resource manager's state directory on this host, and successive process providers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_dir = folder / "rm"
        self.directory = self.state_dir / "provided" / "process"
        self._made: list[ProcessProvider] = []

    def provider(self, text: str = "") -> ProcessProvider:
        """Returns a new provider, as after a restart."""
        read = configuration(self.folder, text or halves(2))
        made: ProcessProvider = make_provider(KIND, read, provider_context(self.state_dir))
        self._made.append(made)
        return made

    async def close(self) -> None:
        for provider in self._made:
            await provider.close()
        left = await asyncio.to_thread(stop_everything, self.directory)
        assert not left

    def path(self, executor_id: str) -> Path:
        return self.directory / "executors" / executor_id

    def endpoint(self, executor_id: str) -> dict[str, object]:
        """Returns the endpoint of an executor; empty until it serves."""
        try:
            note = json.loads((self.path(executor_id) / "state" / "endpoint.json").read_text())
        except (OSError, ValueError):
            return {}
        lives = this_process(note["pid"])
        return note if lives is not None and lives.is_running() else {}

    async def serves(self, executor_id: str) -> int:
        """Waits until an executor serves; returns its pid."""
        note = await eventually(lambda: self.endpoint(executor_id), what="an executor serves")
        return int(note["pid"])

    def claims(self) -> dict[str, str]:
        """Returns the share of each executor."""
        found = {each.name: read_claim(each) for each in (self.directory / "executors").iterdir()}
        return {name: claim.share.name for name, claim in found.items() if claim}


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    made = Host(tmp_path)
    async with joining() as address:
        context = provider_context(made.state_dir)
        for executor_id in (ONE, TWO):
            give_token(context, executor_id, join_token(address, executor_id))
        yield made
        await made.close()


async def ended(provider: ProcessProvider) -> str:
    """Waits until executor ONE is reported as ended; returns the message."""

    async def look() -> str:
        seen = await provider.status(ONE, "half", "")
        return seen.message if seen.presence is Presence.ENDED else ""

    said: str = await eventually(look, what="it ended")
    return said


async def test_an_executor_is_started_seen_and_stopped_with_all_that_it_had(host: Host) -> None:
    provider = host.provider(halves(2, isolation="auto"))

    started = await provider.start(ONE, "half", again=False)
    await host.serves(ONE)
    seen = await provider.status(ONE, "half", started.handle)
    groups = [
        Path(group)
        for group in json.loads((host.path(ONE) / "state" / "helper" / "helper.json").read_text())[
            "base"
        ].values()
    ]
    existed = [group.exists() for group in groups]
    said = await provider.stop(ONE, "half", started.handle)

    assert "half#1" in started.message
    assert seen.presence is Presence.RUNS
    assert all(existed)
    assert said == ""
    assert not processes_naming(host.path(ONE))
    assert not any(group.exists() for group in groups)
    assert not host.path(ONE).exists()
    assert "task_executor_serving" in (host.directory / "output" / f"{ONE}.log").read_text()


async def test_what_it_writes_is_bounded_as_long_as_it_lives(host: Host) -> None:
    provider = host.provider()
    await provider.start(ONE, "half", again=False)
    await host.serves(ONE)
    output = host.path(ONE) / "output"
    with output.open("ab") as file:  # like the executor, which continues to write to it
        for _ in range(3):
            file.write(b"x" * OUTPUT_BYTES_MAX + b" the last\n")
            file.flush()
            seen = await provider.status(ONE, "half", "")
            assert seen == Observation(Presence.RUNS)
            assert output.stat().st_size == 0
        file.write(b"and the next\n")
    earlier = output.with_name("output.earlier")
    assert earlier.stat().st_size == OUTPUT_BYTES_MAX
    assert earlier.read_bytes().endswith(b"x the last\n")
    assert output.read_bytes() == b"and the next\n"


async def test_it_is_told_its_share_its_labels_and_its_shape(host: Host) -> None:
    provider = host.provider()
    await provider.start(ONE, "half", again=False)
    pid = await host.serves(ONE)

    told = tomllib.loads((host.path(ONE) / "executor.toml").read_text())["executor"]
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")

    assert told["cpu"] == "500m"
    assert told["memory"] == 64 * 1024 * 1024
    assert told["labels"] == {"zone": "a"}
    assert told["provided_as"] == "half"
    assert told["stop_tasks_on_exit"] is True
    assert b"FINEGRAIN_PROVIDED_AS=half" in environment


async def test_a_share_is_never_given_to_two(host: Host) -> None:
    provider = host.provider()
    ids = [f"{PREFIX}-{number}" for number in range(1, 5)]

    told = await asyncio.gather(
        *(provider.start(each, "half", again=False) for each in ids), return_exceptions=True
    )

    failed = [each for each in told if isinstance(each, ProviderFailed)]
    assert len(failed) == 2
    assert "all 2 shares of shape half are in use" in failed[0].message
    assert sorted(host.claims().values()) == ["half#1", "half#2"]


async def test_a_leader_that_was_stopped_while_it_gave_a_share_holds_nobody_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CLAIM_WAIT_S", 0.1)
    host.directory.mkdir(parents=True)
    with (host.directory / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ProviderFailed, match="suspended"):
            await host.provider().start(ONE, "half", again=False)

    assert await host.provider().start(ONE, "half", again=True)


async def test_a_share_is_free_again_when_its_executor_is_gone(host: Host) -> None:
    provider = host.provider(halves(1))
    await provider.start(ONE, "half", again=False)
    await provider.stop(ONE, "half", "")

    await provider.start(TWO, "half", again=False)

    assert host.claims() == {TWO: "half#1"}


async def test_asked_again_it_leaves_the_one_that_runs(host: Host) -> None:
    await host.provider().start(ONE, "half", again=False)
    pid = await host.serves(ONE)

    again = await host.provider().start(ONE, "half", again=True)

    assert f"process {pid} " in again.message
    assert host.claims() == {ONE: "half#1"}


async def test_killed_before_the_process_was_started_the_next_life_starts_it(host: Host) -> None:
    """The provider was killed after it claimed a share."""
    provider = host.provider(halves(1))
    own = configuration(host.folder, halves(1)).shapes[KIND][0]
    claimed = ExecutorDirectory(host.directory, ONE, ["never"], {})
    claimed.path.parent.mkdir(parents=True)
    share = own.settings.shares[0]
    claimed.make(Claim("half", share), provider._configuration(claimed, own, share))

    with pytest.raises(ProviderFailed, match=f"in use, by {ONE}"):
        await provider.start(TWO, "half", again=False)
    await provider.start(ONE, "half", again=True)

    await host.serves(ONE)
    assert host.claims() == {ONE: "half#1"}


async def test_killed_before_it_noted_the_process_the_next_life_finds_it(host: Host) -> None:
    await host.provider(halves(1)).start(ONE, "half", again=False)
    pid = await host.serves(ONE)
    (host.path(ONE) / "front.json").unlink()

    again = await host.provider(halves(1)).start(ONE, "half", again=True)

    assert f"process {pid} " in again.message


async def test_killed_while_it_stopped_one_the_next_life_ends_that(host: Host) -> None:
    await host.provider().start(ONE, "half", again=False)
    pid = await host.serves(ONE)
    os.kill(pid, signal.SIGTERM)  # and then the provider was killed
    await eventually(lambda: not host.endpoint(ONE), what="the front has ended")

    provider = host.provider()
    await provider.stop(ONE, "half", "")
    await provider.stop(ONE, "half", "")

    assert not host.path(ONE).exists()
    assert not processes_naming(host.path(ONE))


async def test_a_front_that_was_killed_is_started_again_but_not_for_ever(host: Host) -> None:
    provider = host.provider()
    await provider.start(ONE, "half", again=False)
    lives = []
    for _ in range(4):
        lives.append(await host.serves(ONE))
        os.kill(lives[-1], signal.SIGKILL)
        await eventually(lambda: not host.endpoint(ONE), what="the front is dead")
        seen = await provider.status(ONE, "half", "")

    assert len(set(lives)) == 4
    assert seen.presence is Presence.ENDED
    said = await provider.stop(ONE, "half", "")
    assert "slots or tasks were left" in said
    assert not processes_naming(host.path(ONE))


async def test_one_that_ended_in_order_by_itself_is_seen_as_ended(host: Host) -> None:
    provider = host.provider()
    await provider.start(ONE, "half", again=False)
    os.kill(await host.serves(ONE), signal.SIGTERM)

    said = await ended(provider)

    assert "stopped" in said


async def test_one_that_cannot_start_is_seen_as_ended_with_what_it_said(host: Host) -> None:
    wrong = halves(1).replace('isolation = "none"', 'isolation = "nnoe"')
    provider = host.provider(wrong)
    await provider.start(ONE, "half", again=False)

    said = await ended(provider)

    assert "isolation" in said
    assert await provider.stop(ONE, "half", "") == ""
    assert not host.path(ONE).exists()


async def test_a_program_that_is_not_there_is_a_failure(host: Host) -> None:
    provider = host.provider(
        halves(1).replace("[process]", '[process]\nprogram = ["/nowhere/finegrain"]')
    )

    with pytest.raises(ProviderFailed, match="/nowhere/finegrain cannot be started: No such file"):
        await provider.start(ONE, "half", again=False)
    assert await provider.stop(ONE, "half", "") == ""


async def test_one_that_does_not_end_in_time_is_killed_with_its_helper(host: Host) -> None:
    provider = host.provider(halves(1).replace('"20s"', '"1s"'))
    await provider.start(ONE, "half", again=False)
    os.kill(await host.serves(ONE), signal.SIGSTOP)

    said = await provider.stop(ONE, "half", "")

    assert said
    assert not processes_naming(host.path(ONE))
    assert not host.path(ONE).exists()


async def test_tasks_of_a_front_that_was_killed_end_with_the_executor(host: Host) -> None:
    """The helper continues when its front dies; a stop must find it in any case."""
    provider = host.provider(halves(1, isolation="auto"))
    await provider.start(ONE, "half", again=False)
    os.kill(await host.serves(ONE), signal.SIGKILL)
    await eventually(lambda: not host.endpoint(ONE), what="the front is dead")
    helpers = processes_naming(host.path(ONE))

    await provider.stop(ONE, "half", "")

    assert helpers
    assert not processes_naming(host.path(ONE))


@pytest.mark.parametrize("isolation", ["none", "auto"])
async def test_one_whose_directory_disappeared_keeps_its_share_until_it_is_stopped(
    host: Host, isolation: str
) -> None:
    provider = host.provider(halves(2, isolation=isolation))
    started = await provider.start(ONE, "half", again=False)
    await host.serves(ONE)
    shutil.rmtree(host.directory)

    seen = await provider.status(ONE, "half", started.handle)
    with pytest.raises(ProviderFailed, match=f"share of {ONE} is not known"):
        await provider.start(TWO, "half", again=False)
    await provider.stop(ONE, "half", started.handle)
    gone = await provider.status(ONE, "half", started.handle)

    assert (seen.presence, gone.presence) == (Presence.RUNS, Presence.ENDED)
    assert not processes_naming(host.path(ONE))
    assert not groups_called(f"finegrain/{ONE}")
    assert "half#1" in (await provider.start(TWO, "half", again=False)).message


async def test_a_stop_that_is_put_off_can_be_taken_up_by_the_next_life(host: Host) -> None:
    provider = host.provider()
    await provider.start(ONE, "half", again=False)
    pid = await host.serves(ONE)
    os.kill(pid, signal.SIGSTOP)
    stopping = asyncio.create_task(provider.stop(ONE, "half", ""))
    await asyncio.sleep(0.2)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    lived_on = Process(pid, this_process(pid).start_ticks).is_running()  # type: ignore[union-attr]
    os.kill(pid, signal.SIGCONT)

    await host.provider().stop(ONE, "half", "")

    assert lived_on
    assert not host.path(ONE).exists()


async def test_what_was_started_elsewhere_is_not_called_gone(host: Host) -> None:
    provider = host.provider()
    elsewhere = f"another-host:/var/lib/finegrain/rm/provided/process/executors/{ONE}"

    seen = await provider.status(ONE, "half", elsewhere)
    with pytest.raises(ProviderFailed, match="another-host"):
        await provider.stop(ONE, "half", elsewhere)

    assert seen.presence is Presence.UNKNOWN


async def test_what_an_earlier_configuration_started_can_still_be_stopped(host: Host) -> None:
    await host.provider().start(ONE, "half", again=False)
    await host.serves(ONE)

    provider = host.provider(halves(2).replace('"half"', '"other"'))

    assert provider.owns(ONE)
    await provider.start("other-1-2", "other", again=False)
    with pytest.raises(ProviderFailed, match="in use"):
        await provider.start("other-1-3", "other", again=False)
    await provider.stop(ONE, "half", "")
    assert not provider.owns(ONE)


async def test_without_a_resource_manager_a_command_ends_everything(
    host: Host, tmp_path: Path
) -> None:
    provider = host.provider()
    for executor_id in (ONE, TWO):
        await provider.start(executor_id, "half", again=False)
    await host.serves(ONE)
    os.kill(await host.serves(ONE), signal.SIGKILL)  # its helper continues
    elsewhere = tmp_path / "other" / "process" / "executors" / ONE / "state"
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import time; time.sleep(1000)", "task_executor", str(elsewhere)
    )

    sweep = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "resource_manager.providers.process_sweep", host.directory.name],
        cwd=host.directory.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (sweep.returncode, sweep.stderr) == (0, "")
    assert not list((host.directory / "executors").iterdir())
    assert not processes_naming(host.directory)
    assert other.returncode is None
    other.kill()
    await other.wait()
