"""Sessions of browsers at the page of a resource manager: which callers get a session, and the
rights of a session.
"""

from __future__ import annotations

import asyncio
import http.cookies
import json
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    NotFound,
    Reason,
    Unauthenticated,
)
from finegrain.rpc.access import Caller
from finegrain_cli.web.manager_page import COOKIE
from finegrain_cli.web.page_files import TOKEN_HEADER
from finegrain_cli.web.serving import serve_web
from resource_manager.service.identities import web_sessions
from resource_manager.service.identities.own import FOLDER
from resource_manager.service.identities.web_sessions import WebSessions
from tests.finegrain_cli.web.conftest import Answer, Web
from tests.support.identities import credentials
from tests.support.rm_service import RunningRm, ScriptedExecutor, running_rm

START_MS = 1_700_000_000_000
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


@dataclass
class Browser:
    """A browser of the manager's page: it has a cookie jar, and a token in the page."""

    web: Web
    cookie: str = ""
    token: str = ""
    sent: dict[str, str] = field(default_factory=lambda: dict(OWN_PAGE))

    async def open(self, link: str) -> Answer:
        answer = await self.web(
            "POST", "/session", link.partition("#")[2].encode(), who="", headers=self.sent
        )
        if answer.status == 200:
            self.cookie = http.cookies.SimpleCookie(answer.headers["set-cookie"])[COOKIE].value
            self.token = answer.json["token"]
        return answer

    async def __call__(
        self, verb: str, path: str, body: Any = None, headers: Mapping[str, str | None] = {}
    ) -> Answer:
        every: dict[str, str | None] = {
            "Cookie": f"{COOKIE}={self.cookie}",
            TOKEN_HEADER: self.token,
            **self.sent,
            **headers,
        }
        present = {name: each for name, each in every.items() if each is not None}
        return await self.web(verb, path, body, who="", headers=present)


async def link_for(web: Web, who: str) -> str:
    async with client(web.rm, who) as cluster:
        return str((await cluster.web_link()).link)


def client(rm: RunningRm, who: str) -> Any:
    return fg.connect(rm.address, credentials=rm.own(who).credentials)


async def browser_of(web: Web, who: str) -> Browser:
    browser = Browser(web)
    assert (await browser.open(await link_for(web, who))).status == 200
    return browser


async def test_a_link_becomes_a_session_with_the_role_of_who_asked(web: Web) -> None:
    async with ScriptedExecutor(web.rm):
        link = await link_for(web, "viewer/vera")
        browser = Browser(web)
        begun = await browser.open(link)
        shown = await browser("GET", "/session")
        reads = await browser("GET", "/v1/executors")
        drains = await browser("POST", "/v1/executors/host-a/drain", {})
        admin = await browser_of(web, "operator/root")
        drained = await admin("POST", "/v1/executors/host-a/drain", {})

    assert link.startswith(f"https://{web.address}/#")
    assert begun.json["identity"] == shown.json["identity"] == "viewer/vera"
    assert begun.json["role"] == "viewer"
    flags = begun.headers["set-cookie"].lower().split("; ")
    assert {"secure", "httponly", "samesite=strict", "path=/"} <= set(flags)
    assert begun.headers["set-cookie"].startswith(f"{COOKIE}=")
    assert not any(each.startswith("domain") for each in flags)
    assert begun.headers["cache-control"] == "no-store"
    assert [each["executor_id"] for each in reads.json["items"]] == ["host-a"]
    assert (drains.status, drains.code) == (403, "ROLE_MISSING")
    assert (drained.status, drained.json["draining"]) == (200, True)


async def test_a_code_is_valid_once(web: Web) -> None:
    link = await link_for(web, "user/alice")
    assert (await Browser(web).open("x#" + "y" * 100_000)).status == 401
    first, second = Browser(web), Browser(web)
    assert (await first.open(link)).status == 200
    again = await second.open(link)
    assert (again.status, again.code) == (401, "TOKEN_WRONG")
    assert "finegrain web --link" in again.json["detail"]


class Values:
    """Replaces the runner: keeps the values that belong to the whole cluster."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}

    async def put(self, metas: Mapping[str, str | None], *, audited: bool = True) -> None:
        for key, value in metas.items():
            self.stored.pop(key, None)
            if value is not None:
                self.stored[key] = value

    async def in_store(self, _read: Any) -> dict[str, str]:
        return dict(self.stored)


async def test_a_code_lasts_a_minute_and_a_session_8_hours() -> None:
    now_ms = [START_MS]
    runner: Any = Values()
    sessions = WebSessions(runner, lambda _identity, _serial: False, lambda: now_ms[0])
    sessions.address = "https://rm"
    shown = credentials("user/alice", "rm:1")
    caller = Caller(shown.who, shown.certificate.encode())
    first, second = (sessions.new_link(caller)[0].partition("#")[2] for _ in range(2))

    now_ms[0] += 59_999
    new = await sessions.begin(first)
    now_ms[0] += 1
    with pytest.raises(Unauthenticated, match="older than a minute"):
        await sessions.begin(second)

    now_ms[0] = new.session.begun_ms + 8 * 3_600_000 - 1
    assert sessions.of(new.cookie, new.token).identity == shown.who
    now_ms[0] += 1
    with pytest.raises(Unauthenticated, match="after its time"):
        sessions.of(new.cookie, new.token)
    await sessions.load()
    assert runner.stored == {}


async def test_a_session_ends_with_its_certificate() -> None:
    shown = credentials("user/alice", "rm:1")
    end_ms = round(shown.not_after * 1_000)
    runner: Any = Values()
    sessions = WebSessions(runner, lambda _identity, _serial: False, lambda: end_ms - 1_000)
    sessions.address = "https://rm"
    link, _ = sessions.new_link(Caller(shown.who, shown.certificate.encode()))
    new = await sessions.begin(link.partition("#")[2])
    assert new.session.ends_ms == end_ms


async def test_cookie_and_token_are_both_needed(web: Web) -> None:
    browser = await browser_of(web, "user/alice")
    other = await browser_of(web, "user/bob")
    for headers in (
        {"Cookie": None},
        {TOKEN_HEADER: None},
        {TOKEN_HEADER: other.token},  # a port of this host may have received the cookie only
        {"Cookie": f"{COOKIE}=guessed"},
    ):
        answer = await browser("GET", "/v1/cluster", headers=headers)
        assert answer.status == 401, headers
        assert "finegrain web --link" in answer.json["detail"]
    assert (await browser("GET", "/v1/cluster")).status == 200


async def test_other_pages_cannot_use_a_session(web: Web) -> None:
    browser = await browser_of(web, "operator/root")
    port = int(web.address.rpartition(":")[2])
    hostile = f"https://127.0.0.1:{port + 1}"
    for headers in (
        {"Sec-Fetch-Site": "same-site"},  # a page at another port of this host
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": None, "Origin": hostile},
        {"Sec-Fetch-Site": None, "Origin": "null"},
        {"Sec-Fetch-Site": "same-origin", "Origin": hostile},
        {"Sec-Fetch-Site": None},  # a change must say where it comes from
        {"Sec-Fetch-Site": "none"},
    ):
        answer = await browser("PATCH", "/v1/groups/ml", {"weight": 2}, headers)
        assert answer.status == 403, headers
    without_token = await browser("PATCH", "/v1/groups/ml", {"weight": 2}, {TOKEN_HEADER: None})
    assert without_token.status == 401
    groups = (await browser("GET", "/v1/groups")).json["groups"]
    assert "ml" not in [each["name"] for each in groups]
    origin = {"Sec-Fetch-Site": None, "Origin": f"https://{web.address}"}
    assert (await browser("PATCH", "/v1/groups/ml", {"weight": 2}, origin)).status == 200


async def test_other_pages_cannot_begin_a_session_or_use_a_certificate(web: Web) -> None:
    link = await link_for(web, "user/alice")
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://127.0.0.1:1"}, {}):
        assert (await Browser(web, sent=dict(headers)).open(link)).status == 403
    assert (await Browser(web).open(link)).status == 200  # the code was not used up
    # a browser shows an installed certificate to every page that makes it call
    answer = await web(
        "PATCH", "/v1/groups/ml", {"weight": 2}, headers={"Origin": "https://127.0.0.1:1"}
    )
    assert answer.status == 403


async def test_a_denial_ends_sessions_for_good(web: Web) -> None:
    alice, bob = await browser_of(web, "user/alice"), await browser_of(web, "user/bob")
    serial = (await alice("GET", "/session")).json
    assert serial["identity"] == "user/alice"
    async with client(web.rm, "operator/root") as cluster:
        (found,) = [each for each in await cluster.web_sessions() if each.identity == "user/alice"]
        await cluster.deny_identity(found.serial)
        assert (await alice("GET", "/v1/cluster")).status == 401
        assert (await alice("GET", "/session")).status == 401
        assert (await bob("GET", "/v1/cluster")).status == 200
        await cluster.allow_identity(found.serial)
        assert (await alice("GET", "/v1/cluster")).status == 401
        assert [each.identity for each in await cluster.web_sessions()] == ["user/bob"]


async def test_sessions_end_after_their_time(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_sessions, "SESSION_MS", 0)
    browser = await browser_of(web, "user/alice")
    answer = await browser("GET", "/v1/cluster")
    assert (answer.status, answer.code) == (401, "CERTIFICATE_EXPIRED")
    async with client(web.rm, "user/alice") as cluster:
        assert await cluster.web_sessions() == []


async def test_people_see_and_end_their_own_sessions(web: Web) -> None:
    alice, bob = await browser_of(web, "user/alice"), await browser_of(web, "user/bob")
    async with client(web.rm, "user/alice") as own, client(web.rm, "operator/root") as admin:
        (mine,) = await own.web_sessions()
        every = {each.identity: each.session_id for each in await admin.web_sessions()}
        with pytest.raises(NotFound):
            await own.end_web_session(every["user/bob"])
        await own.end_web_session(mine.session_id)
        assert (await alice("GET", "/v1/cluster")).status == 401
        assert (await bob("GET", "/v1/cluster")).status == 200
        await admin.end_web_session(every["user/bob"])
        assert (await bob("GET", "/v1/cluster")).status == 401
        entries = await admin.audit(method="EndWebSession")
        assert [(each.actor, each.object, each.outcome) for each in entries] == [
            ("user/alice", mine.session_id, "ok"),
            ("operator/root", every["user/bob"], "ok"),
        ]


async def test_a_browser_leaves_its_session(web: Web) -> None:
    browser = await browser_of(web, "user/alice")
    left = await browser("DELETE", "/session")
    assert left.status == 204
    assert "max-age=0" in left.headers["set-cookie"].lower()
    assert (await browser("GET", "/v1/cluster")).status == 401


async def test_the_oldest_session_ends_when_an_identity_has_too_many(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_sessions, "SESSIONS_OF_IDENTITY_MAX", 2)
    browsers = [await browser_of(web, "user/alice") for _ in range(3)]
    bob = await browser_of(web, "user/bob")
    states = [(await each("GET", "/v1/cluster")).status for each in (*browsers, bob)]
    assert states == [401, 200, 200, 200]
    monkeypatch.setattr(web_sessions, "SESSIONS_MAX", 3)
    full = await Browser(web).open(await link_for(web, "user/carol"))
    assert (full.status, full.code) == (429, "OVER_LIMIT")


async def test_a_session_survives_a_restart(tmp_path: Path) -> None:
    async with running_rm(tmp_path / "rm", web=serve_web, web_listen="127.0.0.1:0") as rm:
        browser = await browser_of(web_of(rm), "user/alice")
        stored = (tmp_path / "rm" / "finegrain.db").read_bytes()
        stored += (tmp_path / "rm" / "finegrain.db-wal").read_bytes()
        assert b"web_session/" in stored
        assert browser.cookie.encode() not in stored
        assert browser.token.encode() not in stored
    async with running_rm(tmp_path / "rm", web=serve_web, web_listen="127.0.0.1:0") as rm:
        browser.web = web_of(rm)
        assert (await browser("GET", "/session")).json["identity"] == "user/alice"
        assert (await browser("GET", "/v1/cluster")).status == 200


def web_of(rm: RunningRm) -> Web:
    return Web(rm, json.loads((rm.state_dir / "endpoint.json").read_text())["web_address"])


async def test_the_page_is_served_with_its_policy(web: Web) -> None:
    page = await web("GET", "/", who="")
    view = await web("GET", "/executors/host-a", who="")
    stranger = await web("GET", "/session", who="")
    assert page.status == view.status == 200
    assert page.body == view.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    assert stranger.status == 401
    assert "finegrain web --link" in stranger.json["detail"]


async def test_without_a_page_there_is_no_link(tmp_path: Path) -> None:
    async with running_rm(tmp_path / "rm") as rm, client(rm, "user/alice") as cluster:
        with pytest.raises(FailedPrecondition, match="web page; set"):
            await cluster.web_link()


async def test_programs_and_executors_get_no_link(web: Web) -> None:
    for who in ("executor/host-a", "metrics"):
        with pytest.raises(FinegrainError) as refused:
            await link_for(web, who)
        assert refused.value.reason is Reason.ROLE_MISSING


async def test_a_standby_links_to_the_leader_and_knows_its_sessions_after_a_takeover(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {
        "database_url": f"sqlite:///{tmp_path}/cluster.db",
        "standby": True,
        "web": serve_web,
        "web_listen": "127.0.0.1:0",
    }
    async with AsyncExitStack() as stack:
        leader = await stack.enter_async_context(running_rm(tmp_path / "a", **options))
        browser = await browser_of(web_of(leader), "user/alice")
        led_at = browser.web.address
        (tmp_path / "b").mkdir(mode=0o700)
        shutil.copytree(tmp_path / "a" / FOLDER, tmp_path / "b" / FOLDER)
        async with running_rm(tmp_path / "b", **options) as standby:
            browser.web = web_of(standby)
            page = await browser("GET", "/")
            refused = await browser("GET", "/session")
            begun = await Browser(browser.web).open("https://rm/#code")
            assert browser.web.address != led_at
            await stack.aclose()  # the leader stops
            while (found := await browser("GET", "/session")).status == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    assert page.status == 200
    for answer in (refused, begun):
        assert (answer.status, answer.code) == (503, "NOT_LEADER")
        assert answer.json["details"]["leading_page"] == f"https://{led_at}"
    assert (found.status, found.json["identity"]) == (200, "user/alice")
