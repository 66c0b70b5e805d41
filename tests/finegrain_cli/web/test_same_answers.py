"""The command, the HTTP interface, the client and the page's stream agree on the same cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from finegrain.credentials import write_credentials
from finegrain_cli.web.live import CHANGING
from tests.finegrain_cli.web.conftest import Web
from tests.finegrain_cli.web.test_live import stream_of
from tests.finegrain_cli.web.test_sessions import client
from tests.support.cli import Finegrain
from tests.support.rm_service import ScriptedExecutor, ScriptedJob, eventually, slot_request

WHO = "operator/root"
MOVING = {
    *CHANGING,
    "used",
    "service",
    "tally",
    "share_now",
    "last_sequence",
    "snapshot_number",
    "age_s",
    "samples",
}
"""Fields that change with the next report, or with time."""

DRAIN = {"action": "DRAIN", "executor_id": "host-a"}
SAME: dict[str, tuple[tuple[str, ...], str, tuple[Any, ...]]] = {
    "/v1/cluster": (("status",), "info", ()),
    "/v1/executors": (("executors",), "executors", ()),
    "/v1/slots": (("slots",), "slots", ()),
    "/v1/requests": (("requests",), "requests", ()),
    "/v1/requests/waits/explanation": (("explain", "waits"), "explain", ("waits",)),
    "/v1/jobs": (("jobs",), "jobs", ()),
    "/v1/groups": (("groups",), "groups", ()),
    "/v1/users": (("users",), "users", ()),
    "/v1/providers": (("providers",), "providers", ()),
}
"""For each route: the command, and the client's method with its arguments."""


def steady(data: Any) -> Any:
    """Returns JSON without the fields that change by themselves."""
    if isinstance(data, dict):
        return {name: steady(each) for name, each in data.items() if name not in MOVING}
    return [steady(each) for each in data] if isinstance(data, list) else data


def content(document: dict[str, Any]) -> Any:
    """Returns a document without its heading."""
    heading = ("api_version", "kind", "next_page_token")
    plain = {name: each for name, each in document.items() if name not in heading}
    return steady(plain.get("items", plain))


async def test_all_ways_to_read_the_cluster_agree(
    web: Web, finegrain: Finegrain, tmp_path: Path
) -> None:
    file = tmp_path / "root.credentials"
    write_credentials(file, web.rm.own(WHO).credentials)

    async def command(*arguments: str) -> dict[str, Any]:
        where = ("--credentials", str(file), "-o", "json")
        found = await asyncio.to_thread(finegrain, *arguments, *where)
        assert found.exit_code == 0, found.stderr
        document: dict[str, Any] = json.loads(found.stdout)
        return document

    async with (
        ScriptedExecutor(web.rm) as executor,
        ScriptedExecutor(web.rm, executor_id="host-b"),
        client(web.rm, WHO) as cluster,
    ):
        job = await ScriptedJob(web.rm).register()
        await job.request(slot_request("runs", cpu_milli=3_000))
        await job.request(slot_request("more"), slot_request("waits", cpu_milli=3_900))
        await eventually(lambda: executor.slots)
        for path, (arguments, name, given) in SAME.items():
            answer = await web("GET", path)
            assert answer.status == 200, (path, answer.body)
            read = await getattr(cluster, name)(*given)
            value = [each.to_dict() for each in read] if isinstance(read, list) else read.to_dict()
            assert content(answer.json) == steady(json.loads(json.dumps(value))), path
            assert content(answer.json) == content(await command(*arguments)), path

        async with stream_of(web, WHO) as stream:
            _, _, snapshot = await stream.until(lambda data: not data["more"])
        listed = content((await web("GET", "/v1/executors")).json)
        left_out = ("topology", "slot_list")
        expected = [{k: v for k, v in each.items() if k not in left_out} for each in listed]
        assert steady(snapshot["executors"]) == expected
        assert steady(snapshot["cluster"]) == content((await web("GET", "/v1/cluster")).json)

        shown = await command("drain", "host-a", "--dry-run")
        over_http = await web("POST", "/v1/preview", DRAIN, who="viewer/vera")
        of_client = await cluster.preview("DRAIN", executor_id="host-a")
        assert content(over_http.json) == shown["preview"] == of_client.to_dict()
        assert of_client.slots_total >= 1
