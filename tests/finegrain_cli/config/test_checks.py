"""Problems of a configuration although every value can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain_cli.config.checks import find_problems
from finegrain_cli.config.model import Settings


def test_defaults_are_in_order() -> None:
    assert find_problems(Settings()) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"rm": {"listen": "nowhere"}}, "rm.listen is 'nowhere'"),
        ({"executor": {"manager": ["host:99999"]}}, "executor.manager is 'host:99999'"),
        ({"rm": {"join_listen": "nowhere"}}, "rm.join_listen is 'nowhere'"),
        ({"client": {"credentials": "/nonexistent"}}, "client.credentials is /nonexistent"),
        ({"rm": {"lost_timeout": "3s"}}, "at least twice rm.report_interval (3000 ms)"),
        ({"executor": {"number_of_slots": 4}}, "set executor.default_slot_fraction to 1/4"),
        ({"executor": {"cpus": "a-b"}}, "executor.cpus is 'a-b'"),
        ({"executor": {"cpus": "0-3", "reserved_cpus": "0"}}, "are both set"),
        ({"rm": {"web_certificate": __file__}}, "rm.web_certificate and rm.web_key belong"),
        ({"rm": {"web_advertise": "finegrain.example.org"}}, "https://finegrain.example.org"),
        ({"rm": {"web_advertise": "https://a/page"}}, "rm.web_advertise is 'https://a/page'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_problem_is_told(settings: dict[str, dict[str, object]], told: str) -> None:
    problems = find_problems(Settings.model_validate(settings))

    assert len(problems) == 1
    assert told in problems[0]


def test_what_is_meant_is_no_problem(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.write_text("{}")
    settings = {
        "rm": {
            "listen": "0.0.0.0:7170",
            "join_listen": "none",
            "metrics_listen": "none",
            "web_advertise": "https://rm.example.org:7172",
        },
        "client": {"credentials": str(credentials)},
    }

    assert find_problems(Settings.model_validate(settings)) == []


def test_the_providers_file_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "providers.toml"
    file.write_text("[[shape]]\n")

    wrong = find_problems(Settings.model_validate({"rm": {"providers_file": str(file)}}))
    missing = find_problems(Settings.model_validate({"rm": {"providers_file": "/nonexistent"}}))

    assert wrong == [f"{file}: shape 1.name is missing; expected a text"]
    assert missing == ["rm.providers_file is /nonexistent; there is no such file"]
