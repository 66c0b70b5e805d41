"""Runs the stories in these folders. README.md describes their language."""

from __future__ import annotations

from pathlib import Path

import pytest

from resource_manager.engine.invariants.all import check_invariants
from tests.scenarios.language import Interpreter

FOLDER = Path(__file__).parent
STORIES = sorted(FOLDER.glob("*/*.txt"))


def _name(path: Path) -> str:
    return f"{path.parent.name} {path.stem}".replace("_", " ")


@pytest.mark.parametrize("path", STORIES, ids=_name)
def test_story(path: Path, request: pytest.FixtureRequest) -> None:
    text = path.read_text()
    played = play(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(played)
    assert played == text


def play(text: str) -> str:
    """Returns the story with the actual output below each `----`."""
    interpreter = Interpreter()
    played = []
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        if "----" not in lines:
            assert all(line.startswith("#") for line in lines), f"no ---- after {lines}"
            played.append(block)
            continue
        commands = lines[: lines.index("----")]
        output = [line for command in commands for line in interpreter.run(command)]
        assert check_invariants(interpreter.cluster.state) == [], commands
        played.append("\n".join([*commands, "----", *(output or ["(nothing)"])]))
    return "\n\n".join(played) + "\n"


def test_every_command_of_the_language_is_described() -> None:
    manual = (FOLDER / "README.md").read_text()
    missing = [name for name in Interpreter.commands() if f"`{name}" not in manual]
    assert missing == []
