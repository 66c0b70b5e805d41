"""Files that docs, docstrings and comments name in backticks exist under that name."""

import re

import pytest

from tests.support.components import REPOSITORY
from tests.support.repository_files import repository_files

NAMED = re.compile(r"`([\w./-]+\.(?:py|md|proto|toml|yaml))`")
NOT_OURS = {
    "/etc/finegrain/finegrain.toml",  # where an administrator puts it
    "000N_what.py",  # how migrations are called
}
READ = (".md", ".py", ".proto", ".toml", ".yaml")
OF_ANOTHER_TIME = ("CHANGELOG.md", "tests/data/")


@pytest.mark.needs("git")
def test_named_files_exist() -> None:
    names = repository_files()
    # A file may be named by its last folders alone: `engine/step.py`, `step.py`.
    known = {
        "/".join(parts[at:])
        for parts in (name.split("/") for name in names)
        for at in range(len(parts))
    }
    missing = []
    for name in names:
        if not name.endswith(READ) or name.startswith(OF_ANOTHER_TIME):
            continue
        text = (REPOSITORY / name).read_text()
        for match in NAMED.finditer(text):
            if match[1] not in known and match[1] not in NOT_OURS:
                line = text.count("\n", 0, match.start()) + 1
                missing.append(f"{name}:{line}: {match[1]}")
    assert missing == []
