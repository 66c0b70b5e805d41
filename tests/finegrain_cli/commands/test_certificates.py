"""`finegrain certs`: certificates for others, and the authority's backup."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from finegrain.certificates.keys import new_key
from finegrain.certificates.reading import read_certificate
from finegrain.credentials import read_credentials
from resource_manager.engine.model.effects import Changes
from resource_manager.service.identities.own import open_own_files
from resource_manager.storage.backup import AUTHORITY_KEY
from resource_manager.storage.opening import open_store
from tests.support.cli import Finegrain
from tests.support.rm_service import RunningRm, running_rm

PASSPHRASE = "correct horse battery"
YEAR_S = 365 * 24 * 3_600


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path / "rm", join_listen="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def passphrase(tmp_path: Path) -> str:
    return secret_file(tmp_path / "passphrase", PASSPHRASE)


def secret_file(path: Path, text: str, mode: int = 0o600) -> str:
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_text(text + "\n")
    return str(path)


async def issue(finegrain: Finegrain, rm: RunningRm, *arguments: str) -> Any:
    operator = str(rm.state_dir / "operator.credentials")
    command = ("certs", "issue", *arguments, "--credentials", operator)
    return await asyncio.to_thread(finegrain, *command)


async def test_prometheus_gets_three_files_that_are_valid_for_a_year(
    finegrain: Finegrain, rm: RunningRm, tmp_path: Path
) -> None:
    folder = tmp_path / "prometheus"
    made = await issue(
        finegrain, rm, "--role", "metrics", "--days", "365", "--pem", "--to", str(folder)
    )

    assert made.exit_code == 0, made.stderr
    assert f"rm.{rm.authority.cluster}.finegrain.internal" in made.stderr
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == {"ca.pem": 0o600, "cert.pem": 0o600, "key.pem": 0o600}
    shown = read_certificate((folder / "cert.pem").read_bytes())
    assert str(shown.identity) == "metrics"
    assert abs(shown.not_after_s - datetime.now(UTC).timestamp() - YEAR_S) < 3_600


async def test_a_program_gets_a_credentials_file(
    finegrain: Finegrain, rm: RunningRm, tmp_path: Path
) -> None:
    path = tmp_path / "nightly"
    wanted = ("--role", "user", "--name", "nightly-build", "--to", str(path))
    made = await issue(finegrain, rm, *wanted, "-o", "json")
    refused = await issue(finegrain, rm, *wanted)

    assert json.loads(made.stdout)["identity"] == "user/nightly-build"
    assert path.stat().st_mode & 0o777 == 0o600
    assert str(read_credentials(path).who) == "user/nightly-build"
    assert read_credentials(path).addresses == (rm.address,)
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True)


async def test_a_program_may_keep_its_key(
    finegrain: Finegrain, rm: RunningRm, tmp_path: Path
) -> None:
    key, request, folder = new_key(), tmp_path / "screen.csr", tmp_path / "screen"
    signed = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request.write_bytes(signed.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    wanted = ("--role", "viewer", "--name", "screen", "--request", str(request))
    made = await issue(finegrain, rm, *wanted, "--pem", "--to", str(folder))

    assert made.exit_code == 0, made.stderr
    assert {each.name for each in folder.iterdir()} == {"ca.pem", "cert.pem"}
    shown = read_certificate((folder / "cert.pem").read_bytes())
    assert (str(shown.identity), shown.public_key) == ("viewer/screen", key.public_key())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--role", "executor", "--name", "web-1"), "finegrain token create --executor"),
        (("--role", "king"), "one of metrics, viewer, user, operator"),
        (("--role", "user"), "a name for the role user"),
        (("--role", "metrics", "--name", "p"), "no name for the role metrics"),
        (("--role", "operator", "--name", "ann", "--days", "90"), "always 30 days"),
        (("--role", "metrics", "--days", "400"), "1 to 365"),
        (("--role", "metrics", "--request", "x.csr"), "--pem"),
        (("--role", "metrics", "--request", "missing.csr", "--pem"), "missing.csr cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_issued_is_said_before_the_manager_is_called(
    finegrain: Finegrain, arguments: tuple[str, ...], says: str
) -> None:
    refused = finegrain("certs", "issue", *arguments)

    assert refused.exit_code in (1, 2), refused.stderr
    assert says in refused.stderr


def test_a_backup_brings_the_authority_to_another_directory(
    finegrain: Finegrain, tmp_path: Path, passphrase: str
) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "ca.p12"
    here.mkdir()
    authority = open_own_files(here).authority
    options = (str(file), "--passphrase-file", passphrase)
    saved = finegrain("certs", "backup", *options, "--state-dir", str(here))
    loaded = finegrain("certs", "restore", *options, "--state-dir", str(there))

    assert (saved.exit_code, loaded.exit_code) == (0, 0), saved.stderr + loaded.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    restored = open_own_files(there)
    assert restored.made is False
    assert restored.authority.private_key_pem == authority.private_key_pem
    assert restored.authority.trusted_pem == authority.trusted_pem


def test_another_authority_is_replaced_only_on_request_and_kept(
    finegrain: Finegrain, tmp_path: Path, passphrase: str
) -> None:
    here, there, file = tmp_path / "here", tmp_path / "there", tmp_path / "ca.p12"
    for folder in (here, there):
        folder.mkdir()
        open_own_files(folder)
    options = (str(file), "--passphrase-file", passphrase, "--state-dir")
    finegrain("certs", "backup", *options, str(here))
    refused = finegrain("certs", "restore", *options, str(there))
    done = finegrain("certs", "restore", *options, str(there), "--yes", "-o", "json")

    assert refused.exit_code == 2
    kept = Path(json.loads(done.stdout)["kept"])
    assert (kept / "ca.key").is_file()
    assert open_own_files(there).cluster == open_own_files(here).cluster


def test_a_wrong_passphrase_changes_nothing(
    finegrain: Finegrain, tmp_path: Path, passphrase: str
) -> None:
    here, file = tmp_path / "here", str(tmp_path / "ca.p12")
    here.mkdir()
    open_own_files(here)
    finegrain("certs", "backup", file, "--passphrase-file", passphrase, "--state-dir", str(here))
    wrong = secret_file(tmp_path / "wrong", "incorrect horse battery")
    new = str(tmp_path / "new")
    refused = finegrain("certs", "restore", file, "--passphrase-file", wrong, "--state-dir", new)

    assert refused.exit_code != 0
    assert "the passphrase is wrong" in refused.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [("short", 0o600, "at least 12 characters"), (PASSPHRASE, 0o644, "chmod 600")],
    ids=["a short one", "one that others can read"],
)
def test_a_passphrase_is_long_and_private(
    finegrain: Finegrain, tmp_path: Path, text: str, mode: int, says: str
) -> None:
    here, file = tmp_path / "here", tmp_path / "ca.p12"
    here.mkdir()
    open_own_files(here)
    given = secret_file(tmp_path / "given", text, mode)
    options = ("--passphrase-file", given, "--state-dir", str(here))
    refused = finegrain("certs", "backup", str(file), *options)

    assert says in refused.stderr
    assert not file.exists()


def test_openssl_reads_a_backup(finegrain: Finegrain, tmp_path: Path, passphrase: str) -> None:
    here, file = tmp_path / "here", str(tmp_path / "ca.p12")
    here.mkdir()
    cluster = open_own_files(here).cluster
    finegrain("certs", "backup", file, "--passphrase-file", passphrase, "--state-dir", str(here))
    read = subprocess.run(
        ["openssl", "pkcs12", "-info", "-in", file, "-noenc", "-passin", f"file:{passphrase}"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "AES-256-CBC" in read.stderr
    assert f"finegrain cluster {cluster}" in read.stdout
    assert "BEGIN PRIVATE KEY" in read.stdout


def uses(finegrain: Finegrain, *options: str) -> list[str]:
    shown = finegrain("certs", "ca", "show", *options, "-o", "json")
    return [each["use"] for each in json.loads(shown.stdout)["items"]]


def test_an_added_authority_can_be_dropped_again(finegrain: Finegrain, tmp_path: Path) -> None:
    options = ("--state-dir", str(tmp_path))
    before = open_own_files(tmp_path).authority
    assert finegrain("certs", "ca", "add", *options).exit_code == 0
    assert uses(finegrain, *options) == ["signs", "next"]
    assert open_own_files(tmp_path).authority.certificate == before.certificate
    again = finegrain("certs", "ca", "add", *options)
    early = finegrain("certs", "ca", "use", "--yes", *options)
    dropped = finegrain("certs", "ca", "drop", "--yes", *options)

    assert "trusts a second authority already" in again.stderr
    assert "no resource manager has run here since" in early.stderr
    assert dropped.exit_code == 0, dropped.stderr
    assert open_own_files(tmp_path).authority.trusted_pem == before.trusted_pem
    assert not (tmp_path / "certificates/ca.next.key").exists()


def test_the_next_authority_signs_after_it_was_served(finegrain: Finegrain, tmp_path: Path) -> None:
    options = ("--state-dir", str(tmp_path))
    before = open_own_files(tmp_path).authority
    finegrain("certs", "ca", "add", *options)
    open_own_files(tmp_path).rm_credentials()  # as a start of the resource manager does
    assert finegrain("certs", "ca", "use", "--yes", *options).exit_code == 0
    after = open_own_files(tmp_path)
    assert after.authority.others == (before.certificate,)
    early = finegrain("certs", "ca", "drop", "--yes", *options)
    after.rm_credentials()
    dropped = finegrain("certs", "ca", "drop", "--yes", *options)

    assert "no resource manager has run here since" in early.stderr
    assert dropped.exit_code == 0, dropped.stderr
    assert uses(finegrain, *options) == ["signs"]
    assert open_own_files(tmp_path).authority.certificate == after.authority.certificate


def test_an_authority_of_another_cluster_is_no_successor(
    finegrain: Finegrain, tmp_path: Path
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
        open_own_files(folder)
    files = [str(other / "certificates" / name) for name in ("ca.pem", "ca.key")]
    given = ("--certificate", files[0], "--key", files[1])
    refused = finegrain("certs", "ca", "add", *given, "--state-dir", str(here))

    assert (refused.exit_code, "one of cluster" in refused.stderr) == (2, True)
    assert uses(finegrain, "--state-dir", str(here)) == ["signs"]


def test_a_restored_database_says_that_the_authority_is_missing(
    finegrain: Finegrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "rm"
    monkeypatch.setenv("FINEGRAIN_RM__STATE_DIR", str(state))
    copy = str(tmp_path / "copy.db")
    finegrain("db", "upgrade")
    database = f"sqlite:///{state}/finegrain.db"
    with closing(open_store(database)) as store:
        store.lead("the resource manager")
        store.commit(Changes(metas={AUTHORITY_KEY: "02ab"}))
    finegrain("db", "backup", copy)
    command = ("db", "restore", copy, "--yes", "--above-epoch", "1")
    without = finegrain(*command)
    open_own_files(state)
    with_another = finegrain(*command)

    assert (without.exit_code, with_another.exit_code) == (0, 0), without.stderr
    assert "has no authority" in without.stderr
    assert "is of another cluster" in with_another.stderr
    assert "finegrain certs restore" in with_another.stderr
