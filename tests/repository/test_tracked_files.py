"""No tracked file contains paths of one machine only, or package indexes."""

import re

import pytest

from tests.support.components import REPOSITORY
from tests.support.repository_files import repository_files

FORBIDDEN = re.compile(
    r"(?<![\w.-])/work/"
    r"|(?<![\w-])--(?:extra-)?index-url\b"
    r"|\bPIP_(?:EXTRA_)?INDEX_URL\b"
    r"|https?://[^\s/]*(?:pypi|npmjs|pythonhosted)[^\s/]*/simple"
    r"|registry\.npmjs\.org"
)
THIS_FILE = "tests/repository/test_tracked_files.py"


@pytest.mark.needs("git")
def test_no_tracked_file_names_a_place_of_one_machine_or_a_package_index() -> None:
    found = []
    for name in repository_files():
        if name == THIS_FILE:
            continue
        text = (REPOSITORY / name).read_text(errors="replace")
        found += [f"{name}: {match[0]}" for match in FORBIDDEN.finditer(text)]
    assert found == []


def test_constraints_are_names_and_versions_only() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[\w.]+", line)] == []
