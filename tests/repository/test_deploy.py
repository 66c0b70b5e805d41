"""The files under deploy are understood by the programs they are for."""

import tomllib

from finegrain_cli.config.model import Settings
from tests.support.components import REPOSITORY


def test_the_configuration_for_containers_has_only_known_keys_and_good_values() -> None:
    settings = Settings.model_validate(
        tomllib.loads((REPOSITORY / "deploy/compose.toml").read_text())
    )
    assert settings.executor.manager == settings.client.manager
    assert settings.rm.database.startswith("postgresql://")
