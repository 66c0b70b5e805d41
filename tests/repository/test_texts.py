"""The texts that users read are kept as files, so that a review shows each change of wording."""

from pathlib import Path

import pytest

from tests.support.texts import FOLDER, written


@pytest.mark.parametrize("name", ["help.txt", "errors.txt"])
def test_the_kept_texts_are_those_of_the_program(name: str) -> None:
    path: Path = FOLDER / name
    assert path.read_text(encoding="utf-8") == written()[path], (
        "texts have changed: python -m tests.support.texts"
    )
