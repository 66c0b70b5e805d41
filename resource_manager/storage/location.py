"""Parses database URLs, without a check whether the database exists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from finegrain.errors import ConfigurationError

_EXPECTED = "expected sqlite:////absolute/path.db or postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
_POSTGRESQL = frozenset({"postgres", "postgresql", "postgresql+psycopg"})
_SQLITE = frozenset({"sqlite", "sqlite+pysqlite"})


def sqlite_url(path: Path) -> str:
    """Returns the URL of a database file. Special characters in the path are quoted."""
    return f"sqlite:///{quote(str(path.absolute()))}"


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """A parsed URL. Its text form hides the password."""

    url: URL

    @property
    def is_sqlite(self) -> bool:
        """True for an SQLite file, False for a PostgreSQL server."""
        return self.url.drivername == "sqlite"

    @property
    def path(self) -> Path:
        """The absolute path of the SQLite file."""
        return Path(self.url.database or "").absolute()

    def __str__(self) -> str:
        if self.is_sqlite:
            return str(self.path)
        return self.url.set(drivername="postgresql").render_as_string(hide_password=True)

    @classmethod
    def parse(cls, text: str) -> DatabaseUrl:
        """Parses a URL.

        Raises:
            ConfigurationError: the text is not a URL of a database. The error contains no password.
        """
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):
            raise ConfigurationError(f"the database URL cannot be parsed; {_EXPECTED}") from None
        if url.drivername in _POSTGRESQL:
            # All schemes use the same driver, because administrators copy URLs from other programs.
            return cls(url.set(drivername="postgresql+psycopg"))
        shown = url.render_as_string(hide_password=True)
        if url.drivername not in _SQLITE:
            raise ConfigurationError(f"database URL {shown}: unknown database; {_EXPECTED}")
        if url.database in (None, "", ":memory:"):
            raise ConfigurationError(
                f"database URL {shown}: a database in memory is lost at a restart; {_EXPECTED}"
            )
        if url.query or url.host:
            raise ConfigurationError(
                f"database URL {shown}: the URL of a file has no host and no options; {_EXPECTED}"
            )
        return cls(url.set(drivername="sqlite"))
