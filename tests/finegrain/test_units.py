"""Converts amounts that people type to integers, and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.errors import InvalidArgument
from finegrain.units import (
    format_bytes,
    format_cpu,
    format_duration,
    format_duration_exactly,
    parse_bytes,
    parse_cpu_milli,
    parse_duration_ms,
    parse_pair,
)
from finegrain.values.bounds import AMOUNT_MAX
from finegrain_cli.config.model import Kind
from finegrain_cli.config.values import amount_text

Parser = Callable[[str, str], int]


@pytest.mark.parametrize(
    ("parse", "text", "amount"),
    [
        (parse_bytes, "0", 0),
        (parse_bytes, "4096", 4096),
        (parse_bytes, "256M", 256 << 20),
        (parse_bytes, "256 MiB", 256 << 20),
        (parse_bytes, "256mb", 256 << 20),
        (parse_bytes, "1.5GiB", 3 << 29),
        (parse_bytes, "2T", 2 << 40),
        (parse_cpu_milli, "2", 2000),
        (parse_cpu_milli, "0.5", 500),
        (parse_cpu_milli, "500m", 500),
        (parse_duration_ms, "30", 30_000),
        (parse_duration_ms, "1.5s", 1500),
        (parse_duration_ms, "250ms", 250),
        (parse_duration_ms, "10m", 600_000),
        (parse_duration_ms, "1h", 3_600_000),
        (parse_duration_ms, "2d", 172_800_000),
    ],
)
def test_what_people_write_is_read(parse: Parser, text: str, amount: int) -> None:
    assert parse("--field", text) == amount


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, ""),
        (parse_bytes, "-1"),
        (parse_bytes, "256X"),
        (parse_bytes, "1e9"),
        (parse_bytes, "0.3"),
        (parse_bytes, "99999999999P"),
        (parse_bytes, "\u0664M\x00"),
        (parse_cpu_milli, "half"),
        (parse_cpu_milli, "0.0005"),
        (parse_cpu_milli, "1.5m"),
        (parse_cpu_milli, "-1"),
        (parse_duration_ms, "soon"),
        (parse_duration_ms, "0.5ms"),
        (parse_duration_ms, "-3s"),
    ],
)
def test_what_is_no_amount_is_refused_by_field_and_value(parse: Parser, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse("--field", text)

    assert caught.value.field == "--field"
    assert caught.value.details["value"] == repr(text)


@given(st.integers(0, AMOUNT_MAX), st.sampled_from(list(Kind)))
def test_what_the_configuration_shows_is_read_back(amount: int, kind: Kind) -> None:
    parse = {
        Kind.SIZE: parse_bytes,
        Kind.CPU: parse_cpu_milli,
        Kind.DURATION: parse_duration_ms,
    }[kind]

    assert parse("value", amount_text(kind, amount)) == amount


@pytest.mark.parametrize(
    ("text", "pair"), [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c"))]
)
def test_a_pair_is_split_at_its_first_sign(text: str, pair: tuple[str, str]) -> None:
    assert parse_pair("--label", text) == pair


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_a_pair_needs_key_and_sign(text: str) -> None:
    with pytest.raises(InvalidArgument, match="KEY=VALUE"):
        parse_pair("--label", text)


def test_amounts_are_shown_short() -> None:
    assert [format_bytes(each) for each in (0, 1023, 1024, 256 << 20, 3 << 29, 1023 << 30)] == [
        "0",
        "1023",
        "1Ki",
        "256Mi",
        "1.5Gi",
        "1023Gi",
    ]
    assert [format_cpu(each) for each in (10, 500, 1000, 12_500)] == ["0.01", "0.5", "1", "12.5"]
    limits = (0, 1, 1_000, 1_500, 90_000, 3_600_000, 7_260_000, 273_600_000)
    assert [format_duration_exactly(each) for each in limits] == [
        "0s",
        "0.001s",
        "1s",
        "1.5s",
        "1m30s",
        "1h",
        "2h1m",
        "3d4h",
    ]
    assert [format_duration(each) for each in (4.24, 187.9, 7500, 273_600)] == [
        "4.2s",
        "3m07s",
        "2h05m",
        "3d04h",
    ]
