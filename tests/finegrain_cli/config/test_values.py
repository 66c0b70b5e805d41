"""The output of `config show` can be used as a file; it contains no passwords."""

from __future__ import annotations

from pathlib import Path

from finegrain_cli.config.load import check_file
from finegrain_cli.config.model import Settings
from finegrain_cli.config.values import all_keys
from tests.support.cli import Finegrain


def test_what_config_show_prints_is_a_file_that_means_the_same(
    finegrain: Finegrain, tmp_path: Path
) -> None:
    source, copy = tmp_path / "source.toml", tmp_path / "copy.toml"
    source.write_text(
        '[rm]\nlease = "90s"\nmemory_min = "1.5M"\n'
        '[executor]\nlabels = { zone = "a b", "x/y" = "\\"q\\"" }\ncpu = 0.25\n'
        'manager = ["a:1"]\norphan_timeout = "never"\n'
        'memory_pools = { managed_memory_bytes = "1G" }\n'
    )

    copy.write_text(finegrain("config", "show", "--config", str(source)).stdout)

    assert check_file(copy).settings == check_file(source).settings
    assert check_file(copy).settings != Settings()


def test_passwords_are_not_shown(finegrain: Finegrain, tmp_path: Path) -> None:
    file = tmp_path / "secret.toml"
    file.write_text('[rm]\ndatabase = "postgresql://me:hunter2@db:5432/books"\n')

    for form in ("table", "json", "jsonl"):
        shown = finegrain("config", "show", "--origin", "--config", str(file), "-o", form).stdout
        assert "hunter2" not in shown
        assert "postgresql://me:***@db:5432/books" in shown


def test_every_key_says_what_it_means() -> None:
    assert [key.path for key in all_keys() if not key.help] == []
