"""Tests that this machine cannot run are listed. With CI=true they fail, and the failure names what
must be installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.components import COMPONENTS
from tests.support.small_runs import run_to_its_end

MISSING = """
import pytest
from dataclasses import replace
from tests.support.components import COMPONENTS, reason_missing
for name in COMPONENTS:
    COMPONENTS[name] = replace(COMPONENTS[name], missing=lambda: "taken away for a test")
reason_missing.cache_clear()

@pytest.mark.parametrize(
    "_component", [pytest.param(name, marks=pytest.mark.needs(name)) for name in COMPONENTS]
)
def test_with(_component): pass
"""
BY_FIXTURE = """
import pytest
@pytest.fixture
def tool(): pytest.skip("no tool here")
def test_with(tool): pass
"""
BY_IMPORT = "import pytest\npytest.importorskip('no_such_module')\ndef test_with(): pass\n"
BY_MODULE = "import pytest\npytest.skip('not here', allow_module_level=True)\n"
BY_CONDITION = """
import pytest
@pytest.mark.skipif(True, reason="not here")
def test_with(): pass
"""


@pytest.mark.full
def test_every_missing_component_is_listed_with_what_installs_it(tmp_path: Path) -> None:
    code, said = run_to_its_end(tmp_path, MISSING)
    assert code == 0, said
    assert f"{len(COMPONENTS)} skipped" in said
    for name, component in COMPONENTS.items():
        assert f"1 test needs {name}; to get it: {component.remedy}\n" in said


def test_in_ci_every_missing_component_is_a_failure_that_names_the_remedy(tmp_path: Path) -> None:
    code, said = run_to_its_end(tmp_path, MISSING, ci=True)
    assert code == 1, said
    assert f"{len(COMPONENTS)} errors" in said or f"{len(COMPONENTS)} failed" in said
    for name, component in COMPONENTS.items():
        failure = f"needs {name}: taken away for a test; to get it: {component.remedy}"
        assert f"left out, which is a failure with CI=true: Skipped: {failure}" in said


@pytest.mark.full
@pytest.mark.parametrize("code", [BY_FIXTURE, BY_IMPORT, BY_MODULE, BY_CONDITION])
def test_no_other_way_of_leaving_out_is_green_in_ci(tmp_path: Path, code: str) -> None:
    there, _ = run_to_its_end(tmp_path, code)
    assert there in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    in_ci, said = run_to_its_end(tmp_path, code, ci=True)
    assert in_ci in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    assert "left out, which is a failure with CI=true" in said


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_remedy_names_a_command(name: str) -> None:
    remedy = COMPONENTS[name].remedy
    commands = ("./dev install-tools", "./dev test", "apt-get install ", "pip config set ")
    assert any(command in remedy for command in commands), remedy
