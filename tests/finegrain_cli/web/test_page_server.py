"""The server of the page on loopback: which callers get access, and what other pages cannot do."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import Unauthenticated
from finegrain_cli.web.page_files import TOKEN_HEADER
from finegrain_cli.web.page_server import CODE_S, PageServer, PageSession
from finegrain_client.connection import Connection
from tests.support.rm_service import running_rm

HERE = Path(__file__).parent


@dataclass
class Page:
    """The page of one user."""

    server: PageServer

    async def __call__(
        self, verb: str, path: str, body: str = "", headers: Mapping[str, str] = {}
    ) -> tuple[int, dict[str, str], bytes]:
        def send() -> tuple[int, dict[str, str], bytes]:
            host = self.server.new_address().removeprefix("http://").partition("/")[0]
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.request(verb, path, body or None, dict(headers))
            answer = connection.getresponse()
            known = {name.lower(): value for name, value in answer.getheaders()}
            found = answer.status, known, answer.read()
            connection.close()
            return found

        return await asyncio.to_thread(send)

    async def token(self) -> str:
        code = self.server.new_address().partition("#")[2]
        status, _, body = await self.redeem(code)
        assert status == 200, body
        return str(json.loads(body)["token"])

    async def redeem(self, code: str) -> tuple[int, dict[str, str], bytes]:
        # `__call__` makes a new code, so this request is sent by hand
        def send() -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection(self.server.host, timeout=60)
            connection.request("POST", "/session", code)
            answer = connection.getresponse()
            found: tuple[int, dict[str, str], bytes] = answer.status, {}, answer.read()
            connection.close()
            return found

        return await asyncio.to_thread(send)


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with running_rm(tmp_path / "rm") as rm:
        connection = Connection([rm.address], rm.own("viewer/vera").credentials, file=None)
        async with PageServer(connection, "127.0.0.1", 0) as server:
            yield Page(server)
        await connection.close()


async def test_the_page_acts_with_the_role_of_its_user(page: Page) -> None:
    headers = {TOKEN_HEADER: await page.token()}
    status, _, body = await page("GET", "/v1/cluster", headers=headers)
    assert (status, json.loads(body)["kind"]) == (200, "Cluster")
    change = {**headers, "Content-Type": "application/json"}
    status, _, body = await page("POST", "/v1/executors/a/drain", "{}", change)
    assert (status, json.loads(body)["code"]) == (403, "ROLE_MISSING")


async def test_without_the_token_nothing_is_answered(page: Page) -> None:
    for headers in ({}, {TOKEN_HEADER: "guessed"}):
        status, _, _ = await page("GET", "/v1/cluster", headers=headers)
        assert status == 401


async def test_an_address_is_valid_once(page: Page) -> None:
    code = page.server.new_address().partition("#")[2]
    assert (await page.redeem("x" * 40))[0] == 401  # what another program of the host may try
    assert (await page.redeem("x" * 100_000))[0] == 401
    assert (await page.redeem(code))[0] == 200
    assert (await page.redeem(code))[0] == 401


def test_an_address_is_valid_for_a_minute() -> None:
    now = [0.0]
    session = PageSession(lambda: now[0])
    code = session.new_code()
    now[0] = CODE_S + 1
    with pytest.raises(Unauthenticated, match="older than a minute"):
        session.redeem(code)


async def test_other_pages_and_other_names_are_refused(page: Page) -> None:
    headers = {TOKEN_HEADER: await page.token()}
    for more in (
        {"Host": "finegrain.example:80"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1"},
    ):
        status, _, _ = await page("GET", "/v1/cluster", headers={**headers, **more})
        assert status == 403, more


async def test_every_file_has_the_policy_and_no_other_file_is_served(page: Page) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/app.js", "text/javascript"),
        ("/vendor/preact.mjs", "text/javascript"),
        ("/style.css", "text/css"),
        ("/executors/host-a", "text/html"),  # a view, which the page itself reads
        ("/../page_server.py", "text/html"),
        ("/vendor/README.md", "text/html"),
    ):
        status, headers, body = await page("GET", path)
        assert status == 200
        assert headers["content-type"].startswith(kind), path
        assert "default-src 'none'" in headers["content-security-policy"]
        assert b"hmac" not in body


@pytest.mark.parametrize("path", ["/tasks", "/tasks/t/output"])
async def test_tasks_need_the_token_and_known_fields(page: Page, path: str) -> None:
    place = "?executor_id=host-a&job_id=j"
    assert (await page("GET", path + place))[0] == 401
    headers = {"x-finegrain-token": await page.token()}
    for query, status, field in (
        ("", 400, "executor_id"),
        ("?executor_id=host-a", 400, "job_id"),
        (place + "&address=1.2.3.4:5", 400, "address"),
        (place, 404, ""),
    ):
        found, _, body = await page("GET", path + query, headers=headers)
        assert found == status, body
        assert json.loads(body)["details"].get("field", "") == field


@pytest.mark.needs("node")
def test_the_texts_of_the_page() -> None:
    files = [str(each) for each in sorted(HERE.glob("*.test.mjs"))]
    done: Any = subprocess.run(["node", "--test", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
