"""A resource manager with its HTTP interface, and clients that show certificates."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from finegrain.credentials import Credentials
from finegrain_cli.web.serving import serve_web
from tests.support.rm_service import RunningRm, running_rm


@dataclass
class Answer:
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The reason code of a problem."""
        assert self.headers["content-type"] == "application/problem+json"
        return str(self.json["code"])


@dataclass
class Web:
    """The HTTP interface of a running resource manager."""

    rm: RunningRm
    address: str
    contexts: dict[str, ssl.SSLContext] = field(default_factory=dict)

    def context(self, who: str) -> ssl.SSLContext:
        """Returns the TLS settings of a client; "" shows no certificate."""
        if who not in self.contexts:
            self.contexts[who] = client_context(self.rm.own(who or "user/x").credentials, who)
        return self.contexts[who]

    def connect(self, who: str = "operator/root") -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.address, context=self.context(who), timeout=60)

    async def __call__(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        who: str = "operator/root",
        headers: Mapping[str, str] = {},
    ) -> Answer:
        """Sends one request on a new connection."""
        return await asyncio.to_thread(self.send, verb, path, body, who, headers)

    def send(self, verb: str, path: str, body: Any, who: str, headers: Mapping[str, str]) -> Answer:
        connection = self.connect(who)
        try:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body)
            kind = {} if body is None else {"Content-Type": "application/json"}
            connection.request(verb, path, content, {**kind, **headers})
            answer = connection.getresponse()
            known = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, known, answer.read())
        finally:
            connection.close()


def client_context(credentials: Credentials, who: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=credentials.authorities)
    context.check_hostname = False  # the certificate names the manager, not its address
    if who:
        file = os.memfd_create("client")
        os.write(file, (credentials.key + credentials.certificate).encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
        os.close(file)
    return context


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[Web]:
    async with running_rm(tmp_path / "rm", web=serve_web, web_listen="127.0.0.1:0") as rm:
        note = json.loads((tmp_path / "rm" / "endpoint.json").read_text())
        yield Web(rm, note["web_address"])
