"""Which package may import which package; pyproject.toml contains the list."""

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.support.components import REPOSITORY

HELPER = REPOSITORY / "task_executor/helper"
HELPER_MODULES = [
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
    for path in sorted(HELPER.rglob("[!_]*.py"))
]


def test_the_import_arrows_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    ran = subprocess.run(
        [program, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_imports_go_round_in_circles_those_for_type_checkers_included() -> None:
    names = ("finegrain", "finegrain_cli", "finegrain_client", "resource_manager", "task_executor")
    graph = grimp.build_graph(*names, cache_dir=None)
    imported_by = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(imported_by).prepare()  # raises CycleError, which names the modules


@pytest.mark.parametrize("module", HELPER_MODULES)
def test_the_helper_loads_nothing_but_the_standard_library_and_our_own(module: str) -> None:
    code = (
        f"import {module}, sys\n"
        "ours = {'finegrain', 'task_executor'}\n"
        "tops = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(tops - ours - sys.stdlib_module_names - {'__main__', '__mp_main__'}))\n"
        "print(*(name for name in sys.modules if name.startswith('finegrain.v1.')))\n"
    )
    # -S: without site-packages, whose start-up hooks may load further modules.
    ran = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("module", "not_needed"),
    [
        (
            "resource_manager.main",
            ("alembic", "mako", "psycopg", "psutil", "sqlalchemy.dialects.postgresql"),
        ),
        ("task_executor.service.front", ("sqlalchemy", "alembic", "resource_manager")),
    ],
)
def test_an_idle_daemon_has_no_modules_that_few_calls_need(
    module: str, not_needed: tuple[str, ...], tmp_path: Path
) -> None:
    """Each of these modules takes some MiB of memory in each daemon."""
    heavy = {*not_needed, "rich", "pygments", "attr", "starlette", "uvicorn", "pydantic", "numpy"}
    code = f"import {module}, sys\n"
    if module == "resource_manager.main":  # its first start makes the database
        code += (
            "from resource_manager.storage.opening import open_store\n"
            f"open_store('sqlite:///{tmp_path}/finegrain.db').close()\n"
        )
    code += "print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert heavy.isdisjoint(ran.stdout.split())
