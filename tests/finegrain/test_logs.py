"""Logs: one line per event, and never a secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from finegrain.errors import InvalidArgument
from finegrain.logs import configure_logging, get_logger
from finegrain.options import LogOptions


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_an_event_is_one_json_line_with_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogOptions())
    get_logger("finegrain.rm").info("slot_granted", allocation_id="slot-1", executor_id="host-a")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["allocation_id"]) == ("slot_granted", "slot-1")
    assert (entry["level"], entry["logger"]) == ("info", "finegrain.rm")


def test_libraries_come_out_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogOptions())
    logging.getLogger("finegrain.rpc").warning("call_refused", extra={"reason": "TOKEN_WRONG"})
    entry = json.loads(capsys.readouterr().err)
    assert (entry["event"], entry["reason"]) == ("call_refused", "TOKEN_WRONG")


@pytest.mark.parametrize("form", ["json", "text"])
def test_secrets_and_local_variables_are_never_shown(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(LogOptions(format=form))
    hidden = "s3cr3t-value"
    log = get_logger("finegrain.rm")
    log.info("job_registered", job_secret=hidden, user_token=hidden, user_token_sha256="abc")
    try:
        raise RuntimeError("failed")
    except RuntimeError:
        log.exception("call_failed")
    text = capsys.readouterr().err
    assert hidden not in text
    assert "abc" in text
    assert "RuntimeError" in text


def test_levels_hold(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(LogOptions(level="warning"))
    get_logger("finegrain.rm").info("slot_granted")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [LogOptions(level="loud"), LogOptions(format="xml")], ids=str)
def test_unknown_levels_and_formats_are_named(options: LogOptions) -> None:
    with pytest.raises(InvalidArgument, match="one of"):
        configure_logging(options)
