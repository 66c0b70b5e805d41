"""An error is the same error on both sides of a call."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from finegrain import errors
from finegrain.errors import FinegrainError, InvalidArgument, Reason, ResourceExhausted
from finegrain.rpc.status import (
    DETAILS_KEY,
    STATUS_BY_CLASS,
    error_from_item,
    error_from_rpc,
    item_error,
    status_of,
)


def tree(root: type[FinegrainError]) -> Iterator[type[FinegrainError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == "finegrain.errors":
            yield from tree(child)


def one_of(kind: type[FinegrainError]) -> FinegrainError:
    if kind is InvalidArgument:
        return InvalidArgument("requests[3].profile", "ü", "something else")
    return kind("something went wrong: ü; do this", details={"limit": 7, "executor_id": "host-a"})


def carried(error: FinegrainError) -> FinegrainError:
    code, message, trailing = status_of(error)
    metadata = grpc.aio.Metadata(*trailing)
    return error_from_rpc(
        grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=message)
    )


def bare(code: grpc.StatusCode, text: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=text)


def test_every_class_has_its_status() -> None:
    assert set(STATUS_BY_CLASS) == set(tree(FinegrainError))


@pytest.mark.parametrize("kind", list(tree(FinegrainError)), ids=lambda kind: kind.__name__)
def test_class_reason_message_and_details_survive_the_wire(kind: type[FinegrainError]) -> None:
    error = one_of(kind)
    again = carried(error)
    assert type(again) is kind
    assert (again.reason, again.message, again.details) == (
        error.reason,
        error.message,
        error.details,
    )


@pytest.mark.parametrize("kind", list(tree(FinegrainError)), ids=lambda kind: kind.__name__)
def test_the_same_as_the_result_of_an_item(kind: type[FinegrainError]) -> None:
    error = one_of(kind)
    again = error_from_item(item_error(error))
    assert (again.reason, again.message, again.details) == (
        error.reason,
        error.message,
        error.details,
    )
    reasons_of_its_own = kind is not errors.FailedPrecondition
    assert type(again) is kind or not reasons_of_its_own


def test_bad_input_names_its_field_on_the_other_side() -> None:
    again = carried(InvalidArgument("requests[3].profile.cpu_milli", -1, "0 or more"))
    assert isinstance(again, InvalidArgument)
    assert (again.field, again.expected) == ("requests[3].profile.cpu_milli", "0 or more")


def test_the_time_to_come_back_travels() -> None:
    again = carried(ResourceExhausted("too much waits", retry_after_s=1.5))
    assert isinstance(again, ResourceExhausted)
    assert again.retry_after_s == 1.5


def test_a_reason_of_a_newer_version_is_kept_in_the_details() -> None:
    item = item_error(errors.NotFound("no such thing"))
    item.reason = "FROM_THE_FUTURE"
    error = error_from_item(item)
    assert error.details["reason"] == "FROM_THE_FUTURE"


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED], ids=lambda c: c.name
)
def test_where_nobody_answers_the_address_is_named(code: grpc.StatusCode) -> None:
    error = error_from_rpc(bare(code, "connection refused"), "127.0.0.1:7170")
    assert isinstance(error, errors.Unavailable)
    assert error.reason is Reason.UNREACHABLE
    assert "127.0.0.1:7170" in error.message


def test_a_server_of_another_version_is_called_so() -> None:
    error = error_from_rpc(bare(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), "host:1")
    assert error.reason is Reason.VERSION_MISMATCH


def test_huge_errors_stay_below_the_limit_of_metadata() -> None:
    details = {f"key_{n}": "v" * 10_000 for n in range(100)}
    _, message, trailing = status_of(errors.NotFound("x" * 100_000, details=details))
    assert len(message) + sum(len(value) for _, value in trailing) < 8 * 1024


def test_details_that_are_no_details_are_ignored() -> None:
    noise = grpc.aio.Metadata((DETAILS_KEY, b"\xff\xff\xff"))
    error = error_from_rpc(
        grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), noise, details="gone")
    )
    assert "NOT_FOUND" in error.message
