"""The HTTP interface over TLS: the same answers, errors and rights as the calls of the protocol."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from openapi_spec_validator import validate

import finegrain_client as fg
from finegrain.errors import InvalidArgument
from finegrain.resources import MIB
from finegrain.rpc.access import CLUSTER_ACCESS
from finegrain.v1 import identity_pb2
from finegrain.v1.identity_pb2_grpc import IdentityServiceStub
from finegrain_cli.web.openapi import description
from finegrain_cli.web.requests import message_from, named_fields
from finegrain_cli.web.routes import ROUTES
from tests.finegrain_cli.web.conftest import Web
from tests.support.rm_service import ScriptedExecutor, ScriptedJob, eventually, slot_request

LISTS = {
    "/v1/executors": "executors",
    "/v1/slots": "slots",
    "/v1/requests": "requests",
    "/v1/jobs": "jobs",
}


async def test_lists_are_those_of_the_client_and_the_command(web: Web) -> None:
    async with ScriptedExecutor(web.rm) as executor:
        job = await ScriptedJob(web.rm).register()
        await job.request(slot_request("runs"), slot_request("waits", cpu_milli=3_900))
        await eventually(lambda: executor.slots)
        async with fg.connect(
            web.rm.address, credentials=web.rm.own("operator/root").credentials
        ) as cluster:
            for path, name in LISTS.items():
                expected = [each.to_dict() for each in await getattr(cluster, name)()]
                answer = await web("GET", path)
                assert answer.status == 200
                assert expected
                assert steady(answer.json["items"]) == steady(expected), path
            explained = (await cluster.explain("waits")).to_dict()
            answer = await web("GET", "/v1/requests/waits/explanation")
            assert answer.json["kind"] == "Explanation"
            assert answer.json["summary"] == explained["summary"]
            assert answer.json["executors"] == explained["executors"]
            one = await web("GET", "/v1/executors/host-a")
            assert [each["allocation_id"] for each in one.json["slot_list"]] == ["runs"]


def steady(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the answer without the values that the next report changes."""
    changing = ("report_number", "report_time", "used", "service", "share_now", "last_sequence")
    return [{name: each[name] for name in each if name not in changing} for each in items]


async def test_who_shows_no_certificate_is_refused_and_roles_hold(web: Web) -> None:
    stranger = await web("GET", "/v1/executors", who="")
    viewer = await web("GET", "/v1/executors", who="viewer/vera")
    drains = await web("POST", "/v1/executors/host-a/drain", {}, who="viewer/vera")
    watches = await web("GET", "/v1/cluster", who="executor/host-a")

    assert (stranger.status, stranger.code) == (401, "CERTIFICATE_MISSING")
    assert viewer.status == 200
    assert (drains.status, drains.code) == (403, "ROLE_MISSING")
    assert "operator" in drains.json["detail"]
    assert (watches.status, watches.code) == (403, "ROLE_MISSING")


async def test_a_refused_caller_is_answered_before_its_body_is_read(web: Web) -> None:
    connection = web.connect("viewer/vera")

    def send() -> int:
        connection.putrequest("POST", "/v1/slots/release")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(10**9))
        connection.endheaders()
        return connection.getresponse().status

    assert await asyncio.to_thread(send) == 403
    connection.close()


async def test_a_user_registers_a_job_and_requests_slots(web: Web) -> None:
    async with ScriptedExecutor(web.rm):
        made = await web(
            "POST",
            "/v1/jobs",
            {"job_id": "j1", "request_id": "s" * 16, "name": "over http", "lease_s": 60.5},
            who="user/alice",
        )
        profile = {"cpu_milli": 500, "task_heap_memory_bytes": 64 * MIB}
        asked = {"requests": [{"allocation_id": "a1", "profile": profile}]}
        foreign = await web("POST", "/v1/jobs/j1/requests", asked, who="user/bob")
        outcome = await web("POST", "/v1/jobs/j1/requests", asked, who="user/alice")
        ended = await web("POST", "/v1/jobs/j1/end", {}, who="user/alice")

        assert (made.status, made.json["lease_s"]) == (201, 60.5)
        assert (foreign.status, foreign.code) == (403, "NOT_OWNER")
        assert outcome.json["items"][0]["id"] == "a1"
        assert (ended.status, ended.json["job_id"]) == (200, "j1")


@pytest.mark.parametrize(
    ("verb", "path", "body", "status", "text"),
    [
        ("GET", "/v1/slots?page=3", None, 400, "page is '3'; expected one of the fields"),
        ("GET", "/v1/slots?page_size=%097", None, 400, "expected an integer"),
        ("GET", "/v1/slots?page_size=many", None, 400, "page_size is 'many'; expected an integer"),
        ("GET", "/v1/requests?states=DONE", None, 400, "expected one of PENDING"),
        ("GET", "/v1/executors/nobody", None, 404, "executor nobody is not known"),
        ("GET", "/v2/slots", None, 404, "there is no /v2/slots"),
        ("PUT", "/v1/slots", None, 405, "method is 'PUT'; expected GET"),
        ("POST", "/v1/slots/release", b"{", 400, "expected a JSON object"),
        ("POST", "/v1/slots/release", [], 400, "expected a JSON object"),
        ("POST", "/v1/slots/release", {"grace_s": "soon"}, 400, "grace_s is 'soon'"),
        ("POST", "/v1/slots/release", {"grace_s": -1}, 400, "grace_s is -1"),
        ("POST", "/v1/slots/release", {"allocation_ids": [7]}, 400, "allocation_ids[0] is '7'"),
        ("POST", "/v1/executors/a/drain", {"executor_id": "b"}, 400, "the value in the path only"),
        ("POST", "/v1/executors/a/drain?reason=x", {}, 400, "expected no query"),
        ("POST", "/v1/slots/a/resize", {"when_in_use": {}}, 400, "when_in_use is '{}'"),
        ("POST", "/v1/executors/a/drain", {"reason": "x" * 300_000}, 413, "more than"),
    ],
)
async def test_what_is_wrong_is_named(
    web: Web, verb: str, path: str, body: Any, status: int, text: str
) -> None:
    answer = await web(verb, path, body)
    assert answer.status == status, answer.body
    assert answer.json["status"] == status
    assert text in answer.json["detail"]


async def test_other_kinds_of_bodies_are_refused(web: Web) -> None:
    form = await web("POST", "/v1/slots/release", b"a=b", headers={"Content-Type": "text/plain"})
    assert form.status == 400
    assert "application/json" in form.json["detail"]


async def test_an_unchanged_resource_is_not_sent_again(web: Web) -> None:
    first = await web("GET", "/v1/groups")
    again = await web("GET", "/v1/groups", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


async def test_a_change_based_on_an_old_reading_is_refused(web: Web) -> None:
    tag = (await web("GET", "/v1/groups")).headers["etag"]
    headers = {"If-Match": tag}
    first = await web("PATCH", "/v1/groups/ml", {"weight": 2}, headers=headers)
    second = await web("PATCH", "/v1/groups/ml", {"weight": 3}, headers=headers)
    unguarded = await web("POST", "/v1/slots/release", {}, headers=headers)

    assert (first.status, first.json["weight"]) == (200, 2.0)
    assert second.status == 412
    assert "/v1/groups has changed since it was read" in second.json["detail"]
    empty = await web("PATCH", "/v1/groups/ml", {"weight": 3}, headers={"If-Match": ""})
    assert empty.status == 400
    names = {each["name"]: each for each in (await web("GET", "/v1/groups")).json["groups"]}
    assert names["ml"]["weight"] == 2.0
    assert unguarded.status == 400


async def test_a_repeated_request_has_the_answer_of_the_first(web: Web) -> None:
    async with ScriptedExecutor(web.rm) as executor:
        job = await ScriptedJob(web.rm).register()
        await job.request(slot_request("runs"))
        await eventually(lambda: executor.slots)
        key, body = {"Idempotency-Key": "k1"}, {"allocation_ids": ["runs"]}
        first = await web("POST", "/v1/slots/release", body, headers=key)
        again = await web("POST", "/v1/slots/release", body, headers=key)
        other = await web("POST", "/v1/slots/release", {"allocation_ids": ["x"]}, headers=key)
        fails = await web(
            "POST", "/v1/executors/nobody/drain", {}, headers={"Idempotency-Key": "2"}
        )

        assert first.status == again.status == 200
        assert first.body == again.body
        assert other.status == 422
        assert fails.status == 404


async def test_events_arrive_as_they_happen_and_continue_after_the_last(web: Web) -> None:
    await web("PATCH", "/v1/groups/first", {})
    connection = web.connect()
    headers = {"Accept": "text/event-stream"}

    def open_stream() -> Any:
        connection.request("GET", "/v1/events", headers=headers)
        return connection.getresponse()

    def next_event(stream: Any) -> dict[str, str]:
        lines: dict[str, str] = {}
        while True:
            line = stream.readline().decode().rstrip("\n")
            if not line and "id" in lines:
                return lines
            name, _, value = line.partition(": ")
            if name in ("id", "event", "data"):
                lines[name] = value

    stream = await asyncio.to_thread(open_stream)
    assert stream.headers["X-Accel-Buffering"] == "no"
    first = await asyncio.to_thread(next_event, stream)
    await web("PATCH", "/v1/groups/second", {})
    second = await asyncio.to_thread(next_event, stream)
    connection.close()

    epoch, sequence = first["id"].split(".")
    assert int(epoch) == 1
    assert second["id"] == f"1.{int(sequence) + 1}"
    assert "second" in json.loads(second["data"])["message"]
    headers["Last-Event-ID"] = first["id"]
    connection = web.connect()
    stream = await asyncio.to_thread(open_stream)
    assert await asyncio.to_thread(next_event, stream) == second
    connection.close()
    wrong = await web("GET", "/v1/events", headers={**headers, "Last-Event-ID": "x"})
    assert wrong.status == 400


async def test_every_call_for_people_has_a_route_that_answers(web: Web) -> None:
    served = {route.call for route in ROUTES}
    assert [call for call in CLUSTER_ACCESS if call not in served] == []
    async with ScriptedExecutor(web.rm):
        for route in ROUTES:
            if not route.changes:
                path = route.path.replace("{executor_id}", "host-a").replace("{group}", "default")
                answer = await web(
                    "GET", path.replace("{allocation_id}", "a").replace("{job_id}", "j")
                )
                assert answer.status == (
                    404 if "{allocation_id}" in path or "{job_id}" in path else 200
                )
        policy = await web("PATCH", "/v1/executors/host-a/policy", {"policy": {"bind": "NONE"}})
        allowed = await web("POST", "/v1/groups/critical/users", {"allow": ["user/alice"]})
        limited = await web("PATCH", "/v1/users/user/alice", {"maximum": {"jobs": 3}})
        deleted = await web("DELETE", "/v1/users/user/alice", {})

        assert policy.json["set"]["bind"] == "None"
        assert allowed.json["users"] == ["user/alice"]
        assert limited.json["maximum"] == {"jobs": 3}
        assert deleted.json["user"] == "user/alice"


async def test_the_description_is_valid_and_names_every_route(web: Web) -> None:
    found = (await web("GET", "/v1/openapi.json", who="")).json
    validate(found)
    named = {(verb.upper(), path) for path, verbs in found["paths"].items() for verb in verbs}
    assert named == {(route.verb, route.path) for route in ROUTES}


def test_the_description_says_which_integers_and_texts_are_refused() -> None:
    """A generated client, or a person, must not learn these limits from refusals."""
    checked = 0
    for route in ROUTES:
        operation = description()["paths"][route.path][route.verb.lower()]
        named = {each["name"]: each["schema"] for each in operation["parameters"]}
        body = operation.get("requestBody")
        if body is not None:
            properties = body["content"]["application/json"]["schema"]["properties"]
            named |= {name: each["anyOf"][0] for name, each in properties.items()}
        for name in named.keys() & named_fields(route.request.DESCRIPTOR):
            schema = named[name]
            if "maximum" in schema:
                message_from(route.request, {name: schema["maximum"]})
                with pytest.raises(InvalidArgument):
                    message_from(route.request, {name: schema["maximum"] + 1})
                checked += 1
            elif "pattern" in schema:
                assert re.match(schema["pattern"], "host-a.1_2")
                message_from(route.request, {name: "host-a.1_2"})
                for refused in ("a\nb", "a\x00", "a\x7f", "a\u2028"):
                    assert not re.match(schema["pattern"], refused)
                    with pytest.raises(InvalidArgument):
                        message_from(route.request, {name: refused})
                checked += 1
    assert checked > 60


async def test_ids_in_paths_have_the_described_form(web: Web) -> None:
    path = description()["paths"]["/v1/executors/{executor_id}"]["get"]["parameters"][0]
    for name, is_allowed in (("host-b", True), ("-b", False), ("b" * 129, False), ("a b", False)):
        assert bool(re.match(path["schema"]["pattern"], name)) == is_allowed
        answer = await web("GET", f"/v1/executors/{name.replace(' ', '%20')}")
        assert answer.status == (404 if is_allowed else 400)


async def test_a_denied_caller_is_refused_on_its_open_connection(web: Web) -> None:
    connection = web.connect("viewer/vera")

    def read() -> int:
        connection.request("GET", "/v1/cluster")
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert await asyncio.to_thread(read) == 200
    identities: Any = IdentityServiceStub(web.rm.channel("operator/root"))
    await identities.DenyIdentity(identity_pb2.DenyIdentityRequest(subject="viewer/vera"))
    assert await asyncio.to_thread(read) == 401
    connection.close()
