"""Reads the command blocks of the documentation, and the requirements of each block.

The mark `sh` means that readers may copy the block. If a test cannot run a block, the first line of
the block has the reason: "sh not-run=systemd". It is one of `REASONS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.components import REPOSITORY

REASONS = {
    "hosts": "needs other hosts",
    "network": "installs packages from the network",
    "root": "changes the host as root",
    "systemd": "needs a host that runs systemd",
    "tests": "runs tests of its own, or is one of the commands that do",
}

_FENCE = re.compile(r"^ *```(?P<language>[a-z]*) *(?P<mark>.*)$")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        page: the file, relative to the repository.
        line: line number of the fence.
        language: "sh", "python", ...
        mark: the rest of the fence's line.
    """

    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def reason(self) -> str:
        """Returns the reason why tests do not run the block; empty: they run it."""
        return self.mark.removeprefix("not-run=") if self.mark else ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Returns all pages for users and contributors."""
    top = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")]
    return [*top, *sorted((REPOSITORY / "docs").rglob("*.md"))]


def blocks(language: str) -> Iterator[Block]:
    """Yields the blocks of one language, page by page."""
    for page in pages():
        opened: tuple[int, str, str] | None = None
        lines: list[str] = []
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            fence = _FENCE.match(line)
            if fence is None:
                lines.append(line)
            elif opened is None:
                opened, lines = (number, fence["language"], fence["mark"]), []
            else:
                name = str(page.relative_to(REPOSITORY))
                if opened[1] == language:
                    yield Block(name, *opened, "\n".join(lines) + "\n")
                opened = None
