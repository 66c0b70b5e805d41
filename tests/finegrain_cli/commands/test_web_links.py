"""`finegrain web --link`, `--sessions` and `--end`, without a resource manager."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from finegrain_client.types.identities import WebLink, WebSession
from tests.support.cli import Finegrain

NOW = datetime.now(UTC)


class FakeSessions:
    """The calls of a client that these options make."""

    def __init__(self) -> None:
        self.host = "127.0.0.1:7172"
        self.ended: list[str] = []

    def __enter__(self) -> FakeSessions:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def web_link(self) -> WebLink:
        return WebLink(f"https://{self.host}/#code", NOW)

    def web_sessions(self) -> list[WebSession]:
        return [
            WebSession("0f1e2d3c4b5a", "user/alice", "77", NOW, NOW + timedelta(hours=7, minutes=1))
        ]

    def end_web_session(self, session_id: str) -> None:
        self.ended.append(session_id)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> FakeSessions:
    fake = FakeSessions()
    monkeypatch.setattr("finegrain_cli.commands.web.open_cluster", lambda: fake)
    return fake


def test_standard_output_is_the_link_and_people_learn_where_it_leads(
    finegrain: Finegrain, sessions: FakeSessions
) -> None:
    local = finegrain("web", "--link")
    sessions.host = "finegrain.example.org"
    public = finegrain("web", "--link")
    document: dict[str, Any] = json.loads(finegrain("web", "--link", "-o", "json").stdout)

    assert local.stdout == "https://127.0.0.1:7172/#code\n"
    assert "set rm.web_listen" in local.stderr
    assert public.stdout == "https://finegrain.example.org/#code\n"
    assert "rm.web_listen" not in public.stderr
    assert (document["kind"], document["link"]) == ("WebLink", public.stdout.strip())


def test_sessions_are_listed_and_ended(finegrain: Finegrain, sessions: FakeSessions) -> None:
    listed = finegrain("web", "--sessions").stdout
    ended = finegrain("web", "--end", "0f1e2d3c4b5a")
    both = finegrain("web", "--link", "--sessions")

    assert "user/alice" in listed
    assert "0f1e2d3c4b5a" in listed
    assert re.search(r"\b[67]h", listed)  # 6h59m if the tests before it took long
    assert sessions.ended == ["0f1e2d3c4b5a"]
    assert "has ended" in ended.stdout
    assert both.exit_code == 2
    assert "only one of" in both.stderr


@pytest.mark.parametrize(
    "view", ["requests", "//example.org/", "https://example.org", "/a b", "/requests#code", "/ä"]
)
def test_only_paths_of_the_page_are_views(finegrain: Finegrain, view: str) -> None:
    """Otherwise the address could lead to another host, or lose its code."""
    refused = finegrain("web", "--no-browser", "--view", view)
    assert refused.exit_code == 2
    assert f"--view is {view!r}" in refused.stderr
    assert "such as /executors/host-a" in refused.stderr


def test_a_link_opens_no_view(finegrain: Finegrain, sessions: FakeSessions) -> None:
    both = finegrain("web", "--link", "--view", "/requests")
    assert both.exit_code == 2
    assert "only one of" in both.stderr
