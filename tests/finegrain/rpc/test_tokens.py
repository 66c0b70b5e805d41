"""Token files: made once, complete, closed to others."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError
from finegrain.rpc.tokens import Tokens, ensure_token_files, read_token, same_secret, sha256_hex
from tests.support.disk_calls import DiskCalls


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_both_are_made_at_the_first_start_and_kept(tmp_path: Path) -> None:
    first = ensure_token_files(tmp_path)
    assert ensure_token_files(tmp_path) == first
    assert first.cluster != first.user
    assert mode_of(tmp_path / "cluster.token") == 0o600
    assert mode_of(tmp_path / "user.token") == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cluster.token", "user.token"]


def test_a_token_that_somebody_may_use_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    ensure_token_files(tmp_path)
    disk.check_durable(tmp_path / "cluster.token")
    disk.check_durable(tmp_path / "user.token")


def test_several_that_start_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _n: ensure_token_files(tmp_path), range(16)))
    assert len({each.cluster for each in made}) == 1


def test_tokens_do_not_show_in_a_repr() -> None:
    assert "abc" not in repr(Tokens(cluster="abc", user="abc"))


def test_a_missing_file_says_where_tokens_come_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="first start"):
        read_token(tmp_path / "user.token")


def test_a_file_open_to_everybody_is_refused_with_the_fix(tmp_path: Path) -> None:
    ensure_token_files(tmp_path)
    path = tmp_path / "cluster.token"
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match=f"chmod o-rwx {path}"):
        read_token(path)


@pytest.mark.parametrize("content", [b"", b"short", b"a b" * 20, b"\xff" * 40, b"x" * 600])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "user.token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=r"user\.token"):
        read_token(path)


def test_an_unknown_group_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no-such-group"):
        ensure_token_files(tmp_path, "no-such-group")


@pytest.mark.needs("root")
def test_the_group_may_read_the_user_token_only(tmp_path: Path) -> None:
    ensure_token_files(tmp_path, "nogroup")
    assert (tmp_path / "user.token").stat().st_gid != os.getgid()
    assert (tmp_path / "cluster.token").stat().st_gid == os.getgid()


def test_secrets_are_compared_by_content() -> None:
    assert same_secret(sha256_hex("a"), sha256_hex("a"))
    assert not same_secret(sha256_hex("a"), sha256_hex("b"))
    assert not same_secret("", sha256_hex(""))
