"""`finegrain db ...` on real SQLite files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resource_manager.storage.opening import open_store
from tests.support.cli import Finegrain


@pytest.fixture
def database(tmp_path: Path) -> str:
    """URL of a database that is not there yet."""
    return f"sqlite:///{tmp_path / 'books.db'}"


def test_upgrade_makes_a_database_and_then_has_nothing_to_do(
    finegrain: Finegrain, database: str
) -> None:
    planned = finegrain("db", "upgrade", "--dry-run", "--database", database, "-o", "json")
    assert not Path(database.removeprefix("sqlite://")).exists()
    done = finegrain("db", "upgrade", "--database", database, "-o", "json")
    again = finegrain("db", "upgrade", "--database", database)

    assert json.loads(planned.stdout) == json.loads(done.stdout) | {"dry_run": True}
    assert json.loads(done.stdout)["from_version"] == 0
    assert "nothing to do" in again.stdout


def test_upgrade_makes_the_state_directory_that_is_meant_by_default(
    finegrain: Finegrain, tmp_path: Path
) -> None:
    file = tmp_path / "f.toml"
    file.write_text(f'[rm]\nstate_dir = "{tmp_path / "new/rm"}"\n')

    assert finegrain("db", "upgrade", "--config", str(file)).exit_code == 0

    assert (tmp_path / "new/rm/finegrain.db").is_file()
    assert (tmp_path / "new/rm").stat().st_mode & 0o777 == 0o700


def test_check_of_what_is_not_there_fails_and_says_what_to_do(
    finegrain: Finegrain, database: str
) -> None:
    result = finegrain("db", "check", "--database", database, "-o", "json")

    assert result.exit_code == 1
    finding = json.loads(result.stdout)["items"][0]
    assert finding["severity"] == "error"
    assert "finegrain db upgrade" in finding["message"]


def test_check_of_a_sound_database_succeeds(finegrain: Finegrain, database: str) -> None:
    finegrain("db", "upgrade", "--database", database)

    result = finegrain("db", "check", "--database", database, "-o", "json")

    assert result.exit_code == 0
    assert {each["severity"] for each in json.loads(result.stdout)["items"]} <= {"warning"}


def test_a_backup_can_be_restored_above_every_epoch(
    finegrain: Finegrain, database: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy.db")
    finegrain("db", "upgrade", "--database", database)
    assert finegrain("db", "backup", copy, "--database", database).exit_code == 0

    result = finegrain(
        "db", "restore", copy, "--yes", "--above-epoch", "41", "--database", database, "-o", "json"
    )

    told = json.loads(result.stdout)
    assert told["rm_epoch"] == 42
    assert Path(told["kept"]).is_file()
    raised = finegrain("db", "raise-epoch", "--above-epoch", "99", "--database", database)
    assert "epoch 100" in raised.stdout


def test_restore_does_not_guess_the_epoch(
    finegrain: Finegrain, database: str, tmp_path: Path
) -> None:
    result = finegrain("db", "restore", str(tmp_path / "x"), "--database", database)

    assert result.exit_code == 2
    assert "--above-epoch" in result.stderr
    assert not Path(database.removeprefix("sqlite://")).exists()


def test_a_database_in_use_is_neither_restored_nor_raised(
    finegrain: Finegrain, database: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy.db")
    finegrain("db", "upgrade", "--database", database)
    finegrain("db", "backup", copy, "--database", database)
    with open_store(database) as store:
        store.lead("the resource manager")

        restored = finegrain(
            "db", "restore", copy, "--yes", "--above-epoch", "1", "--database", database
        )
        raised = finegrain("db", "raise-epoch", "--above-epoch", "1", "--database", database)

    for result in (restored, raised):
        assert result.exit_code == 1
        assert "the resource manager" in result.stderr
        assert "[STORE_IN_USE]" in result.stderr
        assert "hint: " in result.stderr


def test_another_programs_file_is_left_alone(
    finegrain: Finegrain, database: str, tmp_path: Path
) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("dear all")

    backup = finegrain("db", "backup", str(letter), "--database", database)
    check = finegrain("db", "check", "--database", f"sqlite:///{letter}")

    assert backup.exit_code == 2
    assert check.exit_code == 1
    assert "is not an SQLite database" in check.stdout
    assert letter.read_text() == "dear all"


def test_passwords_are_not_repeated(finegrain: Finegrain) -> None:
    url = "postgresql://me:hunter2@127.0.0.1:1/books?connect_timeout=1"

    result = finegrain("db", "upgrade", "--database", url, "-o", "json")

    assert result.exit_code == 1
    assert json.loads(result.stdout)["code"] == "STORE_UNAVAILABLE"
    assert "hunter2" not in result.output
