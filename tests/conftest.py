"""What all tests share: the plugin for left-out tests, and the Hypothesis profile."""

import pytest
from hypothesis import settings

from tests.support.components import use_project_tools
from tests.support.properties import register_profiles

pytest_plugins = ["tests.support.plugin"]

use_project_tools()
register_profiles()


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples properties get, before the modules of tests are imported."""
    settings.load_profile("full" if config.getoption("all_tests") else "quick")
