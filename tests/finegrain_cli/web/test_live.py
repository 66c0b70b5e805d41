"""Tests of the live stream of the page: snapshot, changes, and the messages after a client has
connected again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from finegrain.rpc.local_calls import LocalCalls
from finegrain.v1 import cluster_pb2
from finegrain_cli.web import live
from finegrain_cli.web.live import STEP_S
from finegrain_cli.web.manager_page import COOKIE
from finegrain_cli.web.page_files import TOKEN_HEADER
from finegrain_cli.web.serving import serve_web
from resource_manager.web_site import WebSite
from tests.finegrain_cli.web.conftest import Web
from tests.finegrain_cli.web.test_sessions import Browser, browser_of, client, web_of
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import (
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    running_rm,
    slot_request,
)

Message = tuple[str, str, Any]
"""Name, id and data."""


class Stream:
    """One open stream."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.headers = answer.headers

    async def message(self) -> Message | None:
        """Returns the next message; None: the stream has ended."""
        return await asyncio.to_thread(self._read)

    async def until(self, check: Any) -> Message:
        """Returns the first message whose data passes a check."""
        while True:
            found = await self.message()
            assert found is not None
            if check(found[2]):
                return found

    def _read(self) -> Message | None:
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name in ("id", "event", "data"):
                fields[name] = value
            elif not name and "data" in fields:
                return fields["event"], fields.get("id", ""), json.loads(fields["data"])
        return None


@asynccontextmanager
async def stream_of(web: Web, who: str = "viewer/vera", **headers: str) -> AsyncIterator[Stream]:
    connection = web.connect(who)

    def begin() -> Any:
        connection.request("GET", "/v1/live", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return answer

    try:
        yield Stream(await asyncio.to_thread(begin))
    finally:
        connection.close()


def changed(data: Any) -> list[str]:
    return [each["executor_id"] for each in data["executors"]]


async def test_a_snapshot_and_then_only_what_changes(web: Web) -> None:
    async with (
        ScriptedExecutor(web.rm),
        ScriptedExecutor(web.rm, executor_id="host-b"),
        stream_of(web) as stream,
    ):
        name, first_id, snapshot = await stream.until(lambda data: not data["more"])
        await web("POST", "/v1/executors/host-b/drain", {"reason": "disk"})
        kind, second_id, delta = await stream.until(changed)
        listed = (await web("GET", "/v1/executors")).json["items"]

    assert name == "snapshot"
    assert stream.headers["Cache-Control"] == "no-store, no-transform"
    assert stream.headers["X-Accel-Buffering"] == "no"
    assert changed(snapshot) == ["host-a", "host-b"]
    assert snapshot["cluster"]["rm_epoch"] == 1
    assert (kind, changed(delta)) == ("delta", ["host-b"])
    assert delta["executors"][0]["drain_reason"] == "disk"
    assert [each.split(".")[0] for each in (first_id, second_id)] == ["1", "1"]
    assert int(second_id.split(".")[1]) > int(first_id.split(".")[1])
    left_out = {"report_number", "report_time", "topology", "slot_list"}
    for sent, full in zip(snapshot["executors"], listed, strict=True):
        assert full.keys() - sent.keys() <= left_out
        assert sent["total"] == full["total"]


async def test_a_client_that_connects_again_gets_what_it_missed(web: Web) -> None:
    async with ScriptedExecutor(web.rm), ScriptedExecutor(web.rm, executor_id="host-b"):
        async with stream_of(web) as stream:
            _, last, _ = await stream.until(lambda data: not data["more"])
        await web("POST", "/v1/executors/host-a/drain", {})
        async with stream_of(web, **{"Last-Event-ID": last}) as stream:
            kind, _, delta = await stream.until(changed)
        async with stream_of(web, **{"Last-Event-ID": "7.1"}) as stream:
            other_epoch = await stream.message()
        wrong = await web("GET", "/v1/live", headers={"Last-Event-ID": "x"})
    assert (kind, changed(delta)) == ("delta", ["host-a"])
    assert other_epoch is not None
    assert other_epoch[0] == "snapshot"
    assert wrong.status == 400


async def test_a_restart_ends_the_stream_and_the_next_begins_with_a_snapshot(
    tmp_path: Path,
) -> None:
    async with running_rm(tmp_path / "rm", web=serve_web, web_listen="127.0.0.1:0") as rm:
        browser = await browser_of(web_of(rm), "viewer/vera")
        async with session_stream(browser) as stream:
            _, last, _ = await stream.until(lambda data: not data["more"])
            rm.task.cancel()
            await asyncio.wait({rm.task})
            assert await stream.message() is None
    async with running_rm(tmp_path / "rm", web=serve_web, web_listen="127.0.0.1:0") as rm:
        browser.web = web_of(rm)
        async with session_stream(browser, **{"Last-Event-ID": last}) as stream:
            again = await stream.message()
    assert again is not None
    assert (again[0], again[1].split(".")[0]) == ("snapshot", "2")


def session_stream(browser: Browser, **headers: str) -> Any:
    own = {"Cookie": f"{COOKIE}={browser.cookie}", TOKEN_HEADER: browser.token}
    return stream_of(browser.web, "", **own, **headers)


async def test_a_denial_ends_the_stream_of_the_session_and_no_other(web: Web) -> None:
    vera, walt = await browser_of(web, "viewer/vera"), await browser_of(web, "viewer/walt")
    async with (
        ScriptedExecutor(web.rm),
        session_stream(vera) as first,
        session_stream(walt) as other,
    ):
        for each in (first, other):
            await each.until(lambda data: not data["more"])
        async with client(web.rm, "operator/root") as admin:
            await admin.deny_identity("viewer/vera")
        while await first.message() is not None:
            pass
        await web("POST", "/v1/executors/host-a/drain", {})
        assert changed((await other.until(changed))[2]) == ["host-a"]


async def test_a_change_of_a_host_does_not_wait_for_the_sums_of_the_cluster(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large cluster, the sums take long. They follow later."""
    monkeypatch.setattr(live, "REST_SUMS", 10**6)
    async with ScriptedExecutor(web.rm), stream_of(web) as stream:
        await stream.until(lambda data: not data["more"])
        await web("POST", "/v1/executors/host-a/drain", {})
        _, _, delta = await stream.until(changed)
        _, _, later = await stream.until(lambda data: data["cluster"] is not None)
    assert changed(delta) == ["host-a"]
    assert delta["cluster"] is None
    assert later["cluster"]["executors"]["draining"] == 1


async def test_many_changes_at_once_are_few_messages(web: Web) -> None:
    async with ScriptedExecutor(web.rm), stream_of(web) as stream:
        await stream.until(lambda data: not data["more"])
        job = await ScriptedJob(web.rm).register()
        for number in range(30):
            await job.request(slot_request(f"a-{number}", cpu_milli=100))
        messages = 0
        while True:
            found = await stream.message()
            assert found is not None
            messages += 1
            if any(each["slots"] == 30 for each in found[2]["executors"]):
                break
    assert messages < 25


async def test_a_caller_without_rights_gets_no_stream(web: Web) -> None:
    assert (await web("GET", "/v1/live", who="")).status == 401
    assert (await web("GET", "/v1/live", who="executor/host-a")).status == 403


async def test_nothing_is_read_while_no_page_is_open(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    plain = LocalCalls.unary

    async def counted(self: Any, *given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return await plain(self, *given, **named)

    monkeypatch.setattr(LocalCalls, "unary", counted)
    async with ScriptedExecutor(web.rm):
        async with stream_of(web) as stream:
            await stream.until(lambda data: not data["more"])
            assert calls
        await eventually(no_reader, what="the reader has ended")
        before = calls
        await web("GET", "/session", who="")  # the server still runs
        await web.rm.cluster.DrainExecutor(cluster_pb2.DrainExecutorRequest(executor_id="host-a"))
        await asyncio.sleep(3 * STEP_S)
    assert calls == before


def no_reader() -> bool:
    """Returns True if no task reads the cluster for pages."""
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    return "Live._follow" not in names


class StoppedCalls:
    """Calls of a resource manager that stops answering."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain
        self.answers = asyncio.Event()
        self.answers.set()

    def check(self, *given: Any) -> None:
        self._plain.check(*given)

    async def unary(self, *given: Any, **named: Any) -> Any:
        await self.answers.wait()
        return await self._plain.unary(*given, **named)


async def test_a_stream_is_silent_while_the_resource_manager_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "QUIET_S", 0.05)
    monkeypatch.setattr(live, "STALE_S", 0.1)
    sites: list[WebSite] = []

    @asynccontextmanager
    async def keep(site: WebSite) -> AsyncIterator[str]:
        sites.append(site)
        yield "127.0.0.1:1"

    async with running_rm(tmp_path / "rm", web=keep, web_listen="127.0.0.1:1") as rm:
        calls = StoppedCalls(sites[0].calls)
        certificate = rm.own("viewer/vera").credentials.certificate.encode()
        lines = await live.Live(calls).open(certificate, "", "")

        async def next_comment(patience_s: float) -> bool:
            try:
                async with asyncio.timeout(patience_s):
                    while not (await anext(lines)).startswith(":"):
                        pass
            except TimeoutError:
                return False
            return True

        assert await next_comment(PATIENCE_S)
        calls.answers.clear()
        while await next_comment(0.5):
            pass
        await lines.aclose()  # type: ignore[attr-defined]
