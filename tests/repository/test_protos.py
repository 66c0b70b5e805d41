"""The protocol files: the generated code is current, and earlier peers still work."""

import subprocess
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*_pb2*"))}


@pytest.mark.slow
@pytest.mark.needs("protos-generator")
def test_generated_code_is_what_the_protos_say(tmp_path: Path) -> None:
    subprocess.run(["./dev", "protos", "--to", str(tmp_path)], cwd=REPOSITORY, check=True)
    fresh = _contents(tmp_path / "finegrain/v1")
    committed = _contents(REPOSITORY / "finegrain/v1")
    assert sorted(committed) == sorted(fresh)
    stale = [name for name, content in committed.items() if content != fresh[name]]
    assert stale == [], "run ./dev protos"


@pytest.mark.needs("buf")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["lint"], id="the protos follow the style, with a comment on everything"),
        pytest.param(
            ["breaking", "--against", "protos/baseline.binpb"],
            id="peers of the frozen protos still understand these",
        ),
    ],
)
def test_buf_agrees(arguments: list[str]) -> None:
    ran = subprocess.run(
        ["buf", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
