"""What the wheel installs in site-packages, and that it works there."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.components import REPOSITORY

pytestmark = pytest.mark.full

PACKAGES = {"finegrain", "finegrain_client", "finegrain_cli", "resource_manager", "task_executor"}


def _python_without_site(
    wheel: Path, code: str, tmp_path: Path
) -> subprocess.CompletedProcess[str]:
    """Run `code` with the unpacked wheel and nothing else importable but the standard library."""
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_the_five_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top_level = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in top_level if not name.endswith(".dist-info")} == PACKAGES


def test_the_wheel_carries_the_migrations_beside_the_code_that_runs_them(wheel: Path) -> None:
    ours = {
        str(path.relative_to(REPOSITORY / "migrations"))
        for path in (REPOSITORY / "migrations").rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        prefix = "resource_manager/migrations/"
        shipped = {name.removeprefix(prefix) for name in archive.namelist() if prefix in name}
    assert ours
    assert ours <= shipped


def test_the_wheel_says_that_it_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert {f"{package}/py.typed" for package in PACKAGES} <= set(archive.namelist())


def test_the_bare_command_names_the_extra_that_it_lacks(wheel: Path, tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['finegrain']; from finegrain_cli.__main__ import main; main()"
    ran = _python_without_site(wheel, code, tmp_path)
    assert ran.returncode == 2
    assert "finegrain[cli]" in ran.stderr
    assert "Traceback" not in ran.stderr


def _floors() -> list[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    floors = [re.match(r"([\w-]+)>=([\d.]+)", line) for line in project["dependencies"]]
    return [f"{floor[1]}=={floor[2]}" for floor in floors if floor]


@pytest.mark.slow
@pytest.mark.needs("package-index")
def test_the_client_alone_works_on_the_lowest_versions_that_it_allows(
    wheel: Path, tmp_path: Path
) -> None:
    floors = _floors()
    assert {floor.split("==")[0] for floor in floors} == {
        "grpcio",
        "protobuf",
        "googleapis-common-protos",
    }
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "-qq", str(wheel), *floors], check=True, timeout=300
    )
    code = (
        "import finegrain_client, pkgutil, importlib\n"
        "for module in pkgutil.walk_packages(finegrain_client.__path__, 'finegrain_client.'):\n"
        "    importlib.import_module(module.name)\n"
        "import finegrain.v1 as v1\n"
        "for module in pkgutil.iter_modules(v1.__path__, 'finegrain.v1.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    subprocess.run([python, "-I", "-W", "error", "-c", code], check=True, cwd=tmp_path)
    ran = subprocess.run(
        [tmp_path / "venv/bin/finegrain"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, "finegrain[cli]" in ran.stderr) == (2, True)


@pytest.mark.needs("engine-compiler")
def test_the_compiled_wheel_holds_libraries_beside_the_sources(wheel: Path, tmp_path: Path) -> None:
    """Builds the wheel as `./dev build --compiled` does."""
    copy, pure = tmp_path / "copy", tmp_path / "pure"
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("finegrain", "resource_manager"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=ignore)
    shutil.copy2(REPOSITORY / "pyproject.toml", copy)
    pure.mkdir()
    script = [REPOSITORY / ".venv-compiler/bin/python", REPOSITORY / "deploy/compiled_wheel.py"]
    subprocess.run([*script, "libraries", copy], check=True, capture_output=True)
    built = subprocess.run(
        [*script, "wheel", copy, shutil.copy2(wheel, pure)],
        check=True,
        capture_output=True,
        text=True,
    )
    compiled = Path(built.stdout.splitlines()[-1])
    assert compiled.name.endswith(".whl")
    assert "-none-any" not in compiled.name
    code = (
        "from resource_manager.engine.placement import placer; import finegrain.intervals as i;"
        "print(placer.__file__.endswith('.so'), i.IntervalSet.of([1, 2, 4]).run_count)"
    )
    done = _python_without_site(compiled, code, tmp_path)
    assert done.stdout == "True 2\n", done.stderr
    assert (tmp_path / "unpacked/resource_manager/engine/placement/placer.py").exists()
