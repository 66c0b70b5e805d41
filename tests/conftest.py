"""What all tests share: the plugin for left-out tests, Hypothesis without deadlines."""

from hypothesis import settings

from tests.support.components import use_project_tools

pytest_plugins = ["tests.support.plugin"]

use_project_tools()

# A deadline per example measures the machine, not the code.
settings.register_profile("finegrain", deadline=None, print_blob=True)
settings.load_profile("finegrain")
