"""Tokens as text and in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.join_token import JoinToken, new_secret, read_join_token, sha256_hex, token_id

TOKEN = JoinToken(("10.0.0.1:7173", "[fd00::1]:7173"), "prod", "02" + "ab" * 32, "c0ffee" * 5)


def file_with(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "join.token"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_one_word_and_comes_back() -> None:
    assert TOKEN.text.startswith("fgjoin-")
    assert len(TOKEN.text.split()) == 1
    assert JoinToken.parse(f" {TOKEN.text}\n") == TOKEN


def test_the_secret_shows_in_no_repr() -> None:
    assert TOKEN.secret not in repr(TOKEN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fgjoin-",
        "fgjoin-!!!",
        TOKEN.text[:-10],
        TOKEN.text.removeprefix("fgjoin-"),
        "fgjoin-" + "A" * 10_000,
        JoinToken((), "prod", "02", "s").text,
        JoinToken(("10.0.0.1:1",), "Not A Cluster", "02", "s").text,
        "fgjoin-WzFd",  # [1]
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidArgument, match="finegrain token create") as caught:
        JoinToken.parse(text)
    assert len(text) < 8 or text not in caught.value.message


def test_an_address_in_it_must_be_one() -> None:
    with pytest.raises(InvalidArgument):
        JoinToken.parse(JoinToken(("nonsense",), "prod", "02", "s").text)


def test_secrets_differ_and_only_their_hash_names_a_token() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert token_id(sha256_hex(first)) not in first
    assert len(token_id(sha256_hex(first))) == 16


def test_a_file_is_read(tmp_path: Path) -> None:
    assert read_join_token(file_with(tmp_path, TOKEN.text + "\n")) == TOKEN


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_can_read_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    path = file_with(tmp_path, TOKEN.text, mode)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {path}"):
        read_join_token(path)


def test_a_file_that_holds_no_token_is_named_and_its_content_is_not(tmp_path: Path) -> None:
    path = file_with(tmp_path, "hunter2")
    with pytest.raises(ConfigurationError, match=str(path)) as caught:
        read_join_token(path)
    assert "hunter2" not in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_join_token(tmp_path / "join.token")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = file_with(tmp_path, "")
    path.write_bytes(b"\xff" * 40)
    with pytest.raises(ConfigurationError, match="not plain text"):
        read_join_token(path)
