"""Tests of the command provider with real commands: arguments, failures, stored notes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resource_manager.providers import command_run
from resource_manager.providers.command import CommandProvider
from resource_manager.providers.command_run import KEPT_BYTES
from resource_manager.providers.process_tree import Process, boot_id, this_process
from resource_manager.providers.provider import Presence, ProviderFailed
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S
from tests.support.providers import (
    TOKEN,
    configuration,
    give_token,
    make_provider,
    provider_context,
)
from tests.support.rm_service import eventually

SAY_STOPPED = 'echo "stopped $1" >> "$LOG"'


class Site:
    """A folder with the administrator's commands, and successive providers that run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        self.notes = folder / "rm" / "provided" / "command" / "notes"
        self.output = folder / "rm" / "provided" / "command" / "output"

    def script(self, name: str, body: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\nLOG='{self.log}'\n{body}\n")
        path.chmod(stat.S_IRWXU)
        return path

    def provider(
        self, start: str, stop: str = SAY_STOPPED, *, status: str = "", more: str = ""
    ) -> CommandProvider:
        """Returns a provider with shell scripts as commands; the handle is their second word."""
        words = '"{executor_id}", "{handle}"'
        text = f"""
        [[shape]]
        name = "far"
        provider = "command"
        total = {{ cpu = 1.5, memory = "2GiB", extended = {{ licence = 2 }} }}
        labels = {{ zone = "a" }}
        [shape.command]
        start = ["{self.script("start", start)}", "{{executor_id}}", "{{cpu}}", "{{memory_mib}}"]
        stop = ["{self.script("stop", stop)}", {words}]
        {more}
        """
        if status:
            text += f'status = ["{self.script("status", status)}", {words}]\n'
        return self.made(text)

    def made(self, text: str) -> CommandProvider:
        read = configuration(self.folder, text)
        around = provider_context(self.folder / "rm", "127.0.0.1:7170")
        made: CommandProvider = make_provider("command", read, around)
        return made

    @property
    def done(self) -> list[str]:
        """Returns what the commands noted, line by line."""
        return self.log.read_text().splitlines()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_commands_are_told_what_they_need(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_RM__LISTEN", "127.0.0.1:1")
    monkeypatch.setenv("PGPASSWORD", "of the books")
    give_token(provider_context(site.folder / "rm"), "far-1-1")
    provider = site.provider('echo "$@" >> "$LOG"; env > "$LOG.env"; echo there it is')

    started = await provider.start("far-1-1", "far", again=False)

    told = dict(
        line.split("=", 1)
        for line in Path(f"{site.log}.env").read_text().splitlines()
        if "=" in line
    )
    assert (started.handle, started.message) == ("far-1-1", "there it is")
    assert site.done == ["far-1-1 1.5 2048"]
    assert told["FINEGRAIN_EXECUTOR_ID"] == "far-1-1"
    assert told["FINEGRAIN_RESOURCE_MANAGER"] == "127.0.0.1:7170"
    assert Path(told["FINEGRAIN_JOIN_TOKEN_FILE"]).read_text() == TOKEN
    assert told["FINEGRAIN_PROVIDED_AS"] == "far"
    assert told["FINEGRAIN_LABELS"] == "zone=a"
    assert told["FINEGRAIN_EXECUTOR__EXTENDED"] == "licence=2"
    # those belong to the resource manager
    assert not {"FINEGRAIN_RM__LISTEN", "PGPASSWORD"} & told.keys()


async def test_the_handle_is_what_the_start_command_says(site: Site) -> None:
    last = site.provider("echo one; echo two; echo", more='handle = "last_line"')
    assert (await last.start("far-1-1", "far", again=False)).handle == "two"

    found = site.provider("echo Submitted batch job 4711", more="handle_pattern = 'job (\\d+)'")
    assert (await found.start("far-1-2", "far", again=False)).handle == "4711"


async def test_a_start_that_does_not_say_the_handle_has_failed(site: Site) -> None:
    provider = site.provider("echo no luck", more="handle_pattern = 'job (\\d+)'")

    with pytest.raises(ProviderFailed, match=r"match job \(\\d\+\); its last output: no luck"):
        await provider.start("far-1-1", "far", again=False)


async def test_stop_is_told_the_handle_also_by_the_next_life(site: Site) -> None:
    stop = 'echo "stopped $1 $2 $FINEGRAIN_HANDLE" >> "$LOG"'
    first = site.provider("echo unit-7", stop, more='handle = "last_line"')
    await first.start("far-1-1", "far", again=False)

    second = site.provider("echo unit-8", stop, more='handle = "last_line"')
    await second.stop("far-1-1", "far", "")  # the event with the handle never became durable

    assert site.done == ["stopped far-1-1 unit-7 unit-7"]
    assert not list(site.notes.iterdir())


async def test_a_failure_tells_exit_status_and_last_words_and_keeps_the_rest(site: Site) -> None:
    provider = site.provider("echo to the file; echo quota exceeded >&2; exit 7")

    with pytest.raises(ProviderFailed) as caught:
        await provider.start("far-1-1", "far", again=False)

    assert "exit status 7" in caught.value.message
    assert "quota exceeded" in caught.value.message
    assert caught.value.details["exit_code"] == "7"
    kept = (site.output / "far-1-1.start").read_text()
    assert "to the file" in kept
    assert "quota exceeded" in kept


async def test_the_join_token_is_kept_nowhere(site: Site) -> None:
    """Messages are shown to all users, because they may list providers."""
    file = give_token(provider_context(site.folder / "rm"), "far-1-1")
    provider = site.provider(
        'set -x; cat "$FINEGRAIN_JOIN_TOKEN_FILE"; : "$(cat "$FINEGRAIN_JOIN_TOKEN_FILE")"; exit 3',
        f"env; cat {file}",
        status=f"env; cat {file}; exit 9",
    )

    with pytest.raises(ProviderFailed) as failure:
        await provider.start("far-1-1", "far", again=False)
    observation = await provider.status("far-1-1", "far", "")
    said = await provider.stop("far-1-1", "far", "")

    assert "(the join token)" in failure.value.message
    told = [failure.value.message, observation.message, said]
    written = [each.read_text() for each in site.output.iterdir()]
    assert len(written) == 3
    assert not [text for text in (*told, *written) if TOKEN in text]


async def test_a_program_that_is_not_there_is_a_failure(site: Site) -> None:
    provider = site.provider("true")
    (site.folder / "start").unlink()

    with pytest.raises(ProviderFailed, match="start cannot be started: No such file"):
        await provider.start("far-1-1", "far", again=False)


@pytest.mark.full
async def test_one_that_hangs_is_ended_with_all_its_children(site: Site) -> None:
    provider = site.provider(
        'trap "" TERM; sleep 1000 & echo $! >> "$LOG"; wait; sleep 1000', more='timeout = "300ms"'
    )

    with pytest.raises(ProviderFailed, match=r"took longer than 0\.3 s"):
        await provider.start("far-1-1", "far", again=False)

    child = this_process(int(site.done[0]))
    assert child is None or not child.is_running()


@pytest.mark.full
async def test_one_that_runs_as_another_user_is_waited_for_and_holds_nothing_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that runs sudo or similar cannot be signaled by us."""

    def not_ours(_group: int, _number: int) -> None:
        raise PermissionError

    provider = site.provider(
        'echo $$ >> "$LOG"; exec sleep 1000', status="exec sleep 1000", more='timeout = "300ms"'
    )
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", not_ours)
        patched.setattr(command_run, "TERMINATE_WAIT_S", 0.1)
        with pytest.raises(ProviderFailed, match="does it run as another user"):
            await provider.start("far-1-1", "far", again=False)
        command = int(site.done[0])
        for _ in range(2):  # no other test interferes
            with pytest.raises(ProviderFailed, match=f"is still running: process {command}"):
                await provider.stop("far-1-1", "far", "")
        first = await provider.status("far-1-2", "far", "")
        again = await provider.status("far-1-2", "far", "")
        assert (first.presence, again.presence) == (Presence.UNKNOWN, Presence.UNKNOWN)
        status = again.message.removeprefix("status: process ").removesuffix(" still runs")
    os.kill(command, signal.SIGKILL)
    os.kill(int(status), signal.SIGKILL)

    await provider.stop("far-1-1", "far", "")
    assert site.done[1:] == ["stopped far-1-1"]


async def test_much_output_is_bounded_and_does_not_block(site: Site) -> None:
    provider = site.provider(
        "yes filler | head -c 5000000; echo; echo the end", more='handle = "last_line"'
    )

    started = await provider.start("far-1-1", "far", again=False)

    kept = (site.output / "far-1-1.start").read_text()
    assert started.handle == "the end"
    assert len(kept) < 3 * KEPT_BYTES
    assert "bytes left out" in kept


async def test_what_goes_on_in_the_background_with_its_output_is_not_waited_for(
    site: Site,
) -> None:
    provider = site.provider('sleep 1000 & echo $! >> "$LOG"; echo started')

    started = await provider.start("far-1-1", "far", again=False)

    background = int(site.done[0])
    lives = this_process(background)
    assert started.message == "started"
    assert lives is not None
    assert lives.is_running()
    os.kill(background, signal.SIGKILL)


async def test_asked_again_stop_comes_first(site: Site) -> None:
    start = 'echo "started $1" >> "$LOG"'
    await site.provider(start).start("far-1-1", "far", again=False)

    await site.provider(start).start("far-1-1", "far", again=True)

    assert site.done == ["started far-1-1", "stopped far-1-1", "started far-1-1"]


async def test_asked_again_nothing_is_started_before_the_stop_succeeded(site: Site) -> None:
    start = 'echo "started $1" >> "$LOG"'
    provider = site.provider(start, "exit 9")

    with pytest.raises(ProviderFailed, match="the stop command of far-1-1 failed"):
        await provider.start("far-1-1", "far", again=True)

    assert site.done == []


async def test_a_start_that_outlived_its_resource_manager_is_ended_first(site: Site) -> None:
    """kill -9 of the resource manager leaves the command running; a note on disk names it."""
    provider = site.provider('echo "started $1" >> "$LOG"')
    await provider.start("far-1-1", "far", again=False)
    orphan = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    process = this_process(orphan.pid)
    assert process is not None
    file = site.notes / "far-1-1.json"
    note = json.loads(file.read_text())
    running = {"boot_id": boot_id(), "pid": process.pid, "start_ticks": process.start_ticks}
    file.write_text(json.dumps({**note, "running": running}))

    await site.provider('echo "started $1" >> "$LOG"').start("far-1-1", "far", again=True)

    assert await orphan.wait() == -signal.SIGTERM
    assert site.done == ["started far-1-1", "stopped far-1-1", "started far-1-1"]


def test_a_command_that_nobody_could_end_after_a_crash_never_begins(tmp_path: Path) -> None:
    """The resource manager is killed after the fork, before the note on disk names the process."""
    begun, pid_file = tmp_path / "begun", tmp_path / "pid"
    life = f"""
import os, signal
from pathlib import Path
from resource_manager.providers.command_run import run_command
from resource_manager.providers.threads import Cancellation

def crash(process):
    Path({str(pid_file)!r}).write_text(str(process.pid))
    os.kill(os.getpid(), signal.SIGKILL)

command = ["touch", {str(begun)!r}]
run_command(command, dict(os.environ), 10, cancellation=Cancellation(), started=crash)
"""
    crashed = subprocess.run([sys.executable, "-c", life], cwd=REPOSITORY, check=False)
    assert crashed.returncode == -signal.SIGKILL

    deadline = time.monotonic() + PATIENCE_S
    while (process := this_process(int(pid_file.read_text()))) and process.is_running():
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert not begun.exists()


async def test_a_process_of_the_same_number_is_left_alone(site: Site) -> None:
    provider = site.provider("true")
    await provider.start("far-1-1", "far", again=False)
    other = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    file = site.notes / "far-1-1.json"
    note = json.loads(file.read_text())
    running = {"boot_id": boot_id(), "pid": other.pid, "start_ticks": 1}
    file.write_text(json.dumps({**note, "running": running}))

    await provider.stop("far-1-1", "far", "")

    lives = this_process(other.pid)
    assert lives is not None
    assert lives.is_running()
    other.kill()
    await other.wait()


async def test_stop_succeeds_with_the_statuses_that_say_nothing_is_there(site: Site) -> None:
    await site.provider("true", "exit 5", more="stop_gone = [5]").stop("far-1-1", "far", "")
    with pytest.raises(ProviderFailed, match="exit status 6"):
        await site.provider("true", "exit 6", more="stop_gone = [5]").stop("far-1-1", "far", "")


async def test_what_is_configured_no_longer_is_stopped_as_it_was(site: Site) -> None:
    await site.provider("true").start("far-1-1", "far", again=False)
    text = '[[shape]]\nname = "near"\nprovider = "command"\ntotal = { cpu = 1, memory = "1GiB" }\n'
    text += '[shape.command]\nstart = ["true"]\nstop = ["true"]\n'
    later = site.made(text)

    assert later.owns("far-1-1")
    await later.stop("far-1-1", "far", "far-1-1")

    assert site.done == ["stopped far-1-1"]
    assert not later.owns("far-1-1")
    with pytest.raises(ProviderFailed, match="shape far is not configured"):
        await later.stop("far-1-2", "far", "far-1-2")


async def test_a_stop_by_a_handle_that_nobody_learnt_stops_nothing(site: Site) -> None:
    more = 'handle = "last_line"'
    provider = site.provider("exit 1", more=more)
    with pytest.raises(ProviderFailed):
        await provider.start("far-1-1", "far", again=False)

    said = await provider.stop("far-1-1", "far", "")

    assert "printed no handle" in said
    assert site.done == []


@pytest.mark.parametrize(
    ("status", "more", "presence"),
    [
        ("exit 0", "", Presence.RUNS),
        ("exit 3", "", Presence.ENDED),
        ("exit 255", "", Presence.UNKNOWN),
        ("exit 1", "status_gone = [1]", Presence.ENDED),
        ("echo PENDING", "status_running_pattern = 'PENDING|RUNNING'", Presence.RUNS),
        ("true", "status_running_pattern = 'PENDING|RUNNING'", Presence.ENDED),
        ("sleep 1000", 'timeout = "200ms"', Presence.UNKNOWN),
        ("", "", Presence.UNKNOWN),
    ],
)
async def test_what_status_says(site: Site, status: str, more: str, presence: Presence) -> None:
    provider = site.provider("true", status=status, more=more)
    assert (await provider.status("far-1-1", "far", "far-1-1")).presence is presence


async def test_status_is_told_the_handle_though_the_books_never_heard_it(site: Site) -> None:
    """The resource manager was killed before the start command ended, or adopted the executor.

    An empty handle names nothing, so the status command would report that the executor is gone.
    """
    status = 'echo "asked $2" >> "$LOG"; [ -n "$2" ] || exit 3'
    by_name = site.provider("true", status=status)
    assert (await by_name.status("far-1-1", "far", "")).presence is Presence.RUNS

    said = site.provider("echo unit-9", status=status, more='handle = "last_line"')
    assert (await said.status("far-1-2", "far", "")).presence is Presence.UNKNOWN
    await said.start("far-1-2", "far", again=False)
    assert (await said.status("far-1-2", "far", "")).presence is Presence.RUNS
    assert site.done == ["asked far-1-1", "asked unit-9"]


async def test_no_more_commands_run_at_a_time_than_configured(site: Site) -> None:
    text = f"""
    [command]
    run_at_once_max = 2
    [[shape]]
    name = "far"
    provider = "command"
    total = {{ cpu = 1, memory = "1GiB" }}
    [shape.command]
    start = ["{site.script("start", 'echo "+" >> "$LOG"; sleep 0.1; echo "-" >> "$LOG"')}"]
    stop = ["true"]
    """
    provider = site.made(text)

    await asyncio.gather(*(provider.start(f"far-1-{n}", "far", again=False) for n in range(8)))

    at_once = most = 0
    for sign in site.done:
        at_once += 1 if sign == "+" else -1
        most = max(most, at_once)
    assert len(site.done) == 16
    assert most <= 2


async def test_a_start_that_is_not_wanted_any_more_is_ended_before_anything_else(
    site: Site,
) -> None:
    provider = site.provider('echo $$ >> "$LOG"; exec sleep 1000')
    starting = asyncio.create_task(provider.start("far-1-1", "far", again=False))
    pid = int((await eventually(lambda: site.done))[0])

    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    process = this_process(pid)
    assert process is None or not process.is_running()


async def test_one_that_waits_for_its_turn_is_not_begun_once_it_is_not_wanted(site: Site) -> None:
    provider = site.provider('echo "begun $1" >> "$LOG"; exec sleep 1000')
    starts = [
        asyncio.create_task(provider.start(f"far-1-{n}", "far", again=False)) for n in range(10)
    ]
    await eventually(lambda: len(site.done) == 8, what="as many as may run at a time")

    for start in reversed(starts):
        start.cancel()
    await asyncio.gather(*starts, return_exceptions=True)

    assert len(site.done) == 8


async def test_closing_ends_nothing_that_was_started(site: Site) -> None:
    provider = site.provider('sleep 1000 > /dev/null 2>&1 & echo $! >> "$LOG"')
    await provider.start("far-1-1", "far", again=False)

    await provider.close()

    background = this_process(int(site.done[0]))
    assert background is not None
    assert background.is_running()
    os.kill(background.pid, signal.SIGKILL)


async def test_a_disk_that_takes_no_notes_is_a_failure_before_anything_runs(site: Site) -> None:
    provider = site.provider('echo begun >> "$LOG"')
    (site.folder / "rm" / "provided").write_text("in the way")

    with pytest.raises(ProviderFailed, match="cannot be written"):
        await provider.start("far-1-1", "far", again=False)

    assert site.done == []


def test_a_process_that_was_waited_for_is_no_more() -> None:
    pid = os.posix_spawnp("true", ["true"], dict(os.environ))
    process = this_process(pid)
    assert process is not None
    deadline = time.monotonic() + PATIENCE_S
    while not process.wait(1) and time.monotonic() < deadline:
        pass
    assert this_process(pid) is None
    assert not Process(pid, process.start_ticks).is_running()


def test_another_child_of_the_same_number_is_not_buried() -> None:
    pid = os.posix_spawnp("true", ["true"], dict(os.environ))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    ended = this_process(pid)
    assert ended is not None

    Process(pid, ended.start_ticks - 1).reap()

    assert os.waitpid(pid, os.WNOHANG)[0] == pid
