"""The page about the configuration lists every key as it is today."""

from __future__ import annotations

import tomllib
from pathlib import Path

from finegrain_cli.config.load import check_file
from finegrain_cli.config.reference import PAGE, updated


def test_the_page_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert updated(page) == page, "run: python -m finegrain_cli.config.reference"


def test_the_example_of_the_page_is_a_valid_file(tmp_path: Path) -> None:
    example = PAGE.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "example.toml"
    file.write_text(example)

    assert check_file(file).settings.executor.labels == tomllib.loads(example)["executor"]["labels"]
