"""Configures logs as in the daemon, on the standard error that pytest shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from finegrain.logs import configure_logging
from finegrain.options import LogOptions


@pytest.fixture(autouse=True)
def _daemon_logs() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    configure_logging(LogOptions(level="debug", format="json"))
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
