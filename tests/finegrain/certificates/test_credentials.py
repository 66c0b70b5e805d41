"""The credentials file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finegrain.credentials import Credentials, read_credentials, write_credentials
from finegrain.errors import ConfigurationError

ANN = Credentials(
    addresses=("127.0.0.1:7170", "rm-b:7170"),
    identity="spiffe://c1/operator/ann",
    authorities="the authority",
    certificate="the certificate",
    key="the key",
    not_before=1_000,
    not_after=90_000,
)


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    write_credentials(path, ANN)
    write_credentials(path, ANN)
    assert read_credentials(path) == ANN
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["credentials.json"]


def test_other_users_must_not_read_it(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    write_credentials(path, ANN)
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_credentials(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "version 2"),
        ({"identity": "spiffe://c1/root"}, "spiffe://c1/root"),
        ({"key": None}, "malformed"),
        ({"addresses": 5}, "malformed"),
        ({"not_after": "soon"}, "malformed"),
    ],
)
def test_a_malformed_file_says_why_and_what_to_do(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    path = tmp_path / "credentials.json"
    write_credentials(path, ANN)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigurationError, match=why) as caught:
        read_credentials(path)
    assert "finegrain login" in caught.value.message
    assert "the key" not in caught.value.message


def test_a_missing_file_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="finegrain login"):
        read_credentials(tmp_path / "none.json")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_credentials(tmp_path / "no-folder" / "credentials.json", ANN)


def test_dates_outside_the_certificate_name_both_clocks() -> None:
    assert not ANN.problem_at(1_000)
    assert not ANN.problem_at(90_000)
    assert "expired at 1970-01-02 01:00:00 UTC" in ANN.problem_at(90_001)
    assert "says 1970-01-02 01:00:01 UTC" in ANN.problem_at(90_001)
    assert "valid from 1970-01-01 00:16:40 UTC" in ANN.problem_at(999)


def test_the_key_is_not_printed() -> None:
    assert "the key" not in repr(ANN)
