"""The mapper of messages: its rules, its exceptions, and classes that do not fit their message."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

import pytest

from finegrain.mapping.fields import MappingError
from finegrain.resources import ResourceProfile
from finegrain.rpc.mapping.reader import FromMessage, Reader, Reading, Via
from finegrain.rpc.mapping.writer import As, FromValue, Writer, Writing
from finegrain.rpc.wire import profile_to_proto
from finegrain.v1 import cluster_pb2, resource_manager_pb2, resources_pb2, slots_pb2


class Placement(StrEnum):
    ANYWHERE = "anywhere"
    SAME_LABEL = "label"


@dataclass(frozen=True)
class Gang:
    gang_id: str
    placement: Placement
    label: str
    timeout_s: float | None


@dataclass(frozen=True)
class TimedGang:
    gang_id: str
    placement: Placement | None
    label: str
    timeout_ms: int | None


@dataclass(frozen=True)
class Request:
    allocation_id: str
    profile: ResourceProfile | None = None
    required_labels: tuple[tuple[str, str], ...] = ()
    pids_max: int = 0


@dataclass(frozen=True)
class Event:
    sequence: int
    event_time: datetime | None
    event_time_ms: int = 0
    note: str = "kept"
    actor: str = ""


@dataclass(frozen=True)
class Explanation:
    gang: Gang | None
    spots: tuple["Spot", ...]
    members: int
    summary: str


@dataclass(frozen=True)
class Spot:
    name: str
    placeable: int


@dataclass(frozen=True)
class Verdict:
    code: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    message: str = ""


REQUEST_UNREAD = (
    "cpu_limit_milli target_address allow_pending restart_on_loss restart_on_device_loss gang_id "
    "cpu_policy time_limit expected_run_time wait_timeout priority revocable"
)
EVENT_UNREAD = "kind executor_id job_id allocation_id reason message"


class UnknownError(Exception):
    pass


READINGS = (
    Reading(Request, slots_pb2.SlotRequest, unread=REQUEST_UNREAD),
    Reading(
        Event,
        cluster_pb2.ClusterEvent,
        {"event_time_ms": "event_time"},
        kept="note",
        unread=EVENT_UNREAD,
    ),
    Reading(
        Explanation,
        resource_manager_pb2.GangExplanation,
        {"summary": FromMessage(lambda message: message.summary.upper(), ("summary",))},
        unread="placeable deadline_time",
    ),
    Reading(Verdict, resource_manager_pb2.CpuVerdict, {"code": Via("code", str.lower)}),
)


def _read(*more: Reading) -> Reader:
    return Reader(
        [*READINGS, *more],
        converters={
            resources_pb2.ResourceProfile: lambda message: ResourceProfile(message.cpu_milli)
        },
        unknown=lambda kind, described, number: UnknownError(kind.__name__, described.name, number),
    )


def _write(*more: Writing) -> Writer:
    return Writer(more, converters={resources_pb2.ResourceProfile: profile_to_proto})


def test_fields_of_the_same_name_presence_durations_and_enums() -> None:
    message = slots_pb2.Gang(gang_id="g", placement=slots_pb2.GANG_PLACEMENT_SAME_LABEL)
    assert _read()(Gang, message) == Gang("g", Placement.SAME_LABEL, "", None)
    message.timeout.FromMilliseconds(1_500)
    assert _read()(Gang, message).timeout_s == 1.5
    assert _read()(TimedGang, message).timeout_ms == 1_500
    assert _write()(slots_pb2.Gang, TimedGang("g", Placement.SAME_LABEL, "", 1_500)) == message


def test_no_number_is_none_where_that_is_allowed_and_unknown_numbers_raise() -> None:
    assert _read()(TimedGang, slots_pb2.Gang()).placement is None
    for number in (0, slots_pb2.GANG_PLACEMENT_SPREAD, 99):
        with pytest.raises(UnknownError) as caught:
            _read()(Gang, slots_pb2.Gang(placement=number))  # type: ignore[arg-type]
        assert caught.value.args == ("Placement", "GangPlacement", number)


def test_moments_come_as_datetime_or_milliseconds() -> None:
    message = cluster_pb2.ClusterEvent(sequence=1)
    assert _read()(Event, message) == Event(1, None)
    message.event_time.FromMilliseconds(1_700_000_000_123)
    moment = datetime.fromtimestamp(1_700_000_000, UTC).replace(microsecond=123_000)
    assert _read()(Event, message) == Event(1, moment, 1_700_000_000_123)


def test_maps_nested_messages_lists_and_functions() -> None:
    message = resource_manager_pb2.GangExplanation(
        gang=slots_pb2.Gang(gang_id="g", placement=slots_pb2.GANG_PLACEMENT_ANYWHERE),
        members=2,
        spots=[resource_manager_pb2.GangSpot(name="a", placeable=1)],
        summary="so",
    )
    gang = Gang("g", Placement.ANYWHERE, "", None)
    assert _read()(Explanation, message) == Explanation(gang, (Spot("a", 1),), 2, "SO")
    verdict = resource_manager_pb2.CpuVerdict(code="CODE", numbers={"n": 1})
    assert _read()(Verdict, verdict) == Verdict("code", {"n": 1})


def test_converters_and_pairs_both_ways() -> None:
    request = Request("a", ResourceProfile(1_000), (("k", "v"), ("l", "w")), 4)
    write = _write(Writing(Request, slots_pb2.SlotRequest, unset=REQUEST_UNREAD))
    assert _read()(Request, write(slots_pb2.SlotRequest, request)) == request
    bare = replace(request, profile=None, required_labels=())
    assert _read()(Request, write(slots_pb2.SlotRequest, bare)) == bare


def test_what_the_caller_gives() -> None:
    reading = Reading(Verdict, resource_manager_pb2.CpuVerdict, given="message", unread="message")
    read = Reader([reading], converters={}, unknown=UnknownError)
    message = resource_manager_pb2.CpuVerdict(code="c")
    assert read(Verdict, message, message="m") == Verdict("c", {}, "m")
    assert read(Verdict, message) == Verdict("c")
    write = _write(Writing(Verdict, resource_manager_pb2.CpuVerdict, given="code", kept="code"))
    assert write(resource_manager_pb2.CpuVerdict, Verdict("c"), code="d").code == "d"


@dataclass(frozen=True)
class View:
    spec: Request
    job_name: str

    @property
    def shouted(self) -> str:
        return self.job_name.upper()


def test_parts_paths_properties_and_functions_when_writing() -> None:
    write = _write(
        Writing(
            View,
            slots_pb2.SlotRequest,
            {
                "target_address": "shouted",
                "gang_id": As("job_name", str.title),
                "cpu_limit_milli": FromValue(lambda view: view.spec.pids_max + 1),
            },
            parts="spec",
            unset="allow_pending restart_on_loss restart_on_device_loss cpu_policy time_limit"
            " expected_run_time wait_timeout priority revocable",
        )
    )
    message = write(slots_pb2.SlotRequest, View(Request("a", pids_max=4), "job"))
    assert message == slots_pb2.SlotRequest(
        allocation_id="a", pids_max=4, cpu_limit_milli=5, target_address="JOB", gang_id="Job"
    )


@dataclass(frozen=True)
class Odd:
    gang_id: str
    label: str
    colour: str = ""


def test_a_field_that_only_one_side_has_is_refused() -> None:
    with pytest.raises(MappingError, match="no field for the attribute 'colour'"):
        _read()(Odd, slots_pb2.Gang())
    with pytest.raises(MappingError, match="no attribute for placement, timeout"):
        _read(Reading(Odd, slots_pb2.Gang, kept="colour"))(Odd, slots_pb2.Gang())
    with pytest.raises(MappingError, match="no attribute for the field"):
        _write()(slots_pb2.Gang, Odd("g", ""))
    with pytest.raises(MappingError, match="no field for colour of Odd"):
        _write(Writing(Odd, slots_pb2.Gang, unset="placement timeout"))(
            slots_pb2.Gang, Odd("g", "")
        )


def test_presence_that_the_protocol_cannot_tell_is_refused() -> None:
    @dataclass(frozen=True)
    class Maybe:
        name: str | None
        placeable: int

    with pytest.raises(MappingError, match="cannot be absent"):
        _read()(Maybe, resource_manager_pb2.GangSpot())
