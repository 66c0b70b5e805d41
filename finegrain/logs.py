"""Configures the logging of daemons to standard error. Each event is one line of text or JSON. By
default, a terminal gets text, and any other output gets JSON.

If the name of a value marks the value as secret, the value is hidden. Messages of libraries that
use Python's logging get the same form. The client library does not use this module, because this
module needs structlog.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from finegrain.errors import InvalidArgument
from finegrain.options import LogOptions


@contextmanager
def _without(module: str) -> Iterator[None]:
    """Makes imports of a module fail, unless the module is loaded already."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


# structlog loads rich for colored tracebacks, which no daemon writes. rich takes 4 MiB per process.
with _without("rich"):
    import structlog

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "json", "text")
HIDDEN = "***"

_SECRET_WORDS = ("token", "secret", "password", "authorization", "private_key")
_HASHED_SUFFIX = "_sha256"


def configure_logging(options: LogOptions) -> None:
    """Configures all logging of this process. The function can be called several times.

    Raises:
        InvalidArgument: the level or format is unknown.
    """
    if options.level not in LEVELS:
        raise InvalidArgument("log.level", options.level, "one of " + ", ".join(LEVELS))
    if options.format not in FORMATS:
        raise InvalidArgument("log.format", options.format, "one of " + ", ".join(FORMATS))
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        # Hide secrets last, because this step must see the fields that all other steps have added.
        hide_secrets,
    ]
    structlog.configure(
        processors=[
            # Filter first, so that events below the level are not formatted.
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Modules create their loggers at import, before the configuration is known.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            # Records of libraries get the same fields, and their secrets are also hidden.
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(options.format),
            ],
        )
    )
    root = logging.getLogger()
    # Replace the handlers. Otherwise each line would be written twice after a second call.
    root.handlers[:] = [handler]
    root.setLevel(options.level.upper())
    # These libraries log so much at level info that the daemon's own events would be hard to find.
    for noisy in ("alembic", "asyncio", "grpc", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Returns a logger: `log.info("slot_granted", allocation_id=..., executor_id=...)`."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Hides each value whose name marks it as secret. Hashes of secrets are not hidden."""
    for key in event:
        if _is_secret(key):
            # Changing a value during the loop is safe, because the set of keys does not change.
            event[key] = HIDDEN
    return event


@lru_cache(1024)
def _is_secret(key: str) -> bool:
    lowered = key.lower()
    return any(word in lowered for word in _SECRET_WORDS) and not lowered.endswith(_HASHED_SUFFIX)


def _renderers(form: str) -> list[Any]:
    # Never show local variables in a traceback, because they can contain secrets.
    if form == "text" or (form == "auto" and sys.stderr.isatty()):
        plain = structlog.dev.plain_traceback
        return [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=plain, sort_keys=False
            )
        ]
    tracebacks = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    )
    # If JSON does not support a value, write it as text, so that the line is not lost.
    return [tracebacks, structlog.processors.JSONRenderer(default=str)]
