"""How an executor gets its certificate: from its directory, or with a token that works once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from finegrain.credentials import (
    Credentials,
    read_credentials,
    write_credentials,
    write_private_file,
)
from finegrain.errors import (
    ConfigurationError,
    FinegrainError,
    Reason,
    Unauthenticated,
    Unavailable,
)
from finegrain.join_token import JoinToken
from task_executor import membership
from task_executor.membership import CREDENTIALS_FILE, executor_credentials, read_join_record
from tests.support.identities import credentials
from tests.support.join_server import JoinServer
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation, eventually

WEB = "executor/web-1"
pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PAUSE_S_MIN", 0.01)


@pytest.fixture
async def server() -> AsyncIterator[JoinServer]:
    async with JoinServer().listening() as listening:
        yield listening


@dataclass
class Directory:
    """A state directory, and the file for its tokens."""

    path: Path
    stopping: threading.Event

    @property
    def token_file(self) -> Path:
        return self.path / "join.token"

    def give(self, token: JoinToken, mode: int = 0o600) -> None:
        self.token_file.write_text(token.text + "\n")
        self.token_file.chmod(mode)

    def saved(self) -> Credentials:
        return read_credentials(self.path / CREDENTIALS_FILE)

    def save(self, made: Credentials) -> None:
        write_credentials(self.path / CREDENTIALS_FILE, made)

    async def start(self, executor_id: str = "", token_file: Path | None = None) -> Credentials:
        return await asyncio.to_thread(
            executor_credentials, self.path, token_file, executor_id, self.stopping
        )

    async def refusal(self, executor_id: str = "") -> FinegrainError:
        with pytest.raises(FinegrainError) as caught:
            await self.start(executor_id)
        return caught.value


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path, threading.Event())


async def test_the_first_start_joins_and_keeps_the_certificate(
    server: JoinServer, directory: Directory
) -> None:
    directory.give(server.token(WEB))
    made = await directory.start()
    assert str(made.who) == WEB
    assert directory.saved() == made
    assert (directory.path / CREDENTIALS_FILE).stat().st_mode & 0o777 == 0o600
    assert read_join_record(directory.path).addresses == (server.address,)
    assert not directory.token_file.exists()
    assert await directory.start("web-1") == made
    assert server.calls == ["Join"]


async def test_a_token_file_of_another_name_is_deleted_too(
    server: JoinServer, directory: Directory, tmp_path: Path
) -> None:
    directory.give(server.token(WEB))
    named = directory.token_file.rename(tmp_path / "given")
    await directory.start(token_file=named)
    assert not named.exists()


async def test_without_certificate_and_token_the_command_is_named(directory: Directory) -> None:
    error = await directory.refusal("web-1")
    assert isinstance(error, ConfigurationError)
    assert "finegrain token create --executor web-1" in error.message
    assert str(directory.token_file) in error.message


async def test_a_token_for_another_executor_leaves_nothing(
    server: JoinServer, directory: Directory
) -> None:
    directory.give(server.token("executor/web-2"))
    error = await directory.refusal("web-1")
    assert "is for executor web-2, but this executor is web-1" in error.message
    assert "finegrain token create --executor web-1" in error.message
    assert not (directory.path / CREDENTIALS_FILE).exists()


@pytest.mark.parametrize("who", ["user/alice", "operator/ann", "rm"])
async def test_a_certificate_of_another_role_is_refused(
    server: JoinServer, directory: Directory, who: str
) -> None:
    directory.give(server.token(who))
    assert f"is for {who}, not for an executor" in (await directory.refusal()).message
    directory.save(credentials(who))
    assert f"is for {who}, not for an executor" in (await directory.refusal()).message


async def test_a_used_token_is_refused(server: JoinServer, directory: Directory) -> None:
    token = server.token(WEB)
    directory.give(token)
    await directory.start()
    (directory.path / CREDENTIALS_FILE).unlink()
    directory.give(token)
    error = await directory.refusal()
    assert isinstance(error, Unauthenticated)
    assert error.reason is Reason.TOKEN_WRONG


async def test_a_token_that_others_can_read_is_not_used(
    server: JoinServer, directory: Directory
) -> None:
    directory.give(server.token(WEB), mode=0o644)
    assert "chmod 600" in (await directory.refusal()).message
    assert server.calls == []


async def test_the_first_start_waits_for_a_manager(directory: Directory) -> None:
    server = JoinServer()
    async with server.listening():
        token = server.token(WEB)
    directory.give(token)
    starting = asyncio.create_task(directory.start())
    await asyncio.sleep(0.1)
    assert not starting.done()
    async with server.listening(server.address):
        assert str((await starting).who) == WEB


async def test_a_lost_answer_does_not_use_up_the_token(
    server: JoinServer, directory: Directory
) -> None:
    directory.give(server.token(WEB))
    server.answers_lost = 1
    directory.stopping.set()  # as a power cut
    assert isinstance(await directory.refusal(), Unavailable)
    assert str((await directory.start()).who) == WEB
    assert server.calls == ["Join", "Join"]
    assert not (directory.path / membership.KEY_FILE).exists()


async def test_a_stop_ends_the_wait_for_a_manager(directory: Directory) -> None:
    server = JoinServer()
    async with server.listening():
        token = server.token(WEB)
    directory.give(token)
    directory.stopping.set()
    assert isinstance(await directory.refusal(), Unavailable)
    assert directory.token_file.exists()


async def test_a_new_token_replaces_a_certificate(server: JoinServer, directory: Directory) -> None:
    """This is needed after an administrator has denied the certificate."""
    directory.save(credentials(WEB))
    directory.give(server.token(WEB))
    made = await directory.start("web-1")
    assert made.certificate != credentials(WEB).certificate
    assert directory.saved() == made


async def test_a_bad_token_does_not_keep_an_executor_from_its_tasks(
    server: JoinServer, directory: Directory
) -> None:
    present = credentials(WEB)
    directory.save(present)
    token = server.token(WEB)
    server._tokens.clear()
    directory.give(token)
    assert await directory.start() == present
    assert directory.token_file.exists()


async def test_a_token_file_that_cannot_be_deleted_is_used_once(
    server: JoinServer, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_delete", lambda _path: None)
    directory.give(server.token(WEB))
    made = await directory.start()
    assert await directory.start() == made
    assert server.calls == ["Join"]


async def test_an_expired_certificate_does_not_keep_an_executor_from_its_tasks(
    directory: Directory,
) -> None:
    expired = credentials(WEB, life_s=60, starts_s=-24 * 3600)
    directory.save(expired)
    assert await directory.start() == expired


@pytest.mark.slow
async def test_a_process_joins_and_nothing_that_it_starts_has_the_token(
    rm: ScriptedRM, process: ExecutorProcess, server: JoinServer
) -> None:
    server.managers = (rm.address,)
    token = server.token(f"executor/{process.executor_id}")
    file = process.folder / "given.token"
    write_private_file(file, token.text.encode())
    process.joined = False
    process.environment = {"FINEGRAIN_PROVIDED_AS": "small"}
    process.start(executor_id=None, managers=[], join_token_file=str(file))
    await eventually(lambda: rm.reports or process.exit_code is not None, "it reports")
    assert process.exit_code is None, process.log
    assert (rm.registered.executor_id, rm.registered.provided_as) == (process.executor_id, "small")
    assert not file.exists()
    await rm.allocate(allocation())
    await rm.job_master().submit("env")
    seen = await rm.job_master().watch()
    assert b"FINEGRAIN_TASK_ID=task" in seen.stdout
    helper = Path(f"/proc/{process.helper_pid()}")
    started = (helper / "environ").read_bytes() + (helper / "cmdline").read_bytes()
    for text in (seen.stdout, started, process.log.encode()):
        assert token.secret.encode() not in text
        assert token.text.encode() not in text


async def test_a_process_without_certificate_says_what_to_do(process: ExecutorProcess) -> None:
    process.joined = False
    process.start()
    await eventually(lambda: process.exit_code is not None, "it ends")
    assert process.exit_code == 1
    assert f"finegrain token create --executor {process.executor_id}" in process.log
    assert not process.has_helper()
