"""Records which files and names Python code writes to disk, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True, slots=True)
class Synced:
    """An fsync; `content` is the content of the file, None for a directory."""

    path: Path
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Named:
    """A file or directory got the name `path`; `content` is its content, None for a directory."""

    source: Path
    path: Path
    content: bytes | None


class DiskCalls:
    """Records sync and rename calls from now on; the calls still have their effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Synced | Named] = []
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._noting_sync(getattr(os, name)))
        for name in ("rename", "replace", "link"):
            monkeypatch.setattr(os, name, self._noting_name(getattr(os, name)))

    def _noting_sync(self, real: Callable[[int], None]) -> Callable[[Any], None]:
        def sync(file: Any) -> None:
            descriptor = file if isinstance(file, int) else file.fileno()
            real(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.calls.append(Synced(path, _content(path)))

        return sync

    def _noting_name(self, real: Callable[..., None]) -> Callable[..., None]:
        def name(source: Any, path: Any, **options: Any) -> None:
            real(source, path, **options)
            self.calls.append(Named(Path(source), Path(path), _content(Path(path))))

        return name

    def check_durable(self, path: Path) -> None:
        """Asserts two syncs: of the file before it was named `path`, and of its directory
        afterwards.

        If one of the two syncs is missing, a power cut can lose the data or the name.
        """
        at, named = next(
            (at, call)
            for at, call in reversed(list(enumerate(self.calls)))
            if isinstance(call, Named) and call.path == path
        )
        before, after = self.calls[:at], self.calls[at + 1 :]
        assert Synced(named.source, named.content) in before, f"{path} has its name before its data"
        assert Synced(path.parent, None) in after, f"the name {path} is not on disk"

    def at_naming(self, path: Path) -> int:
        """Returns the index of the first call that gave a file this name."""
        return next(
            at
            for at, call in enumerate(self.calls)
            if isinstance(call, Named) and call.path == path
        )


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
