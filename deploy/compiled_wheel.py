"""Compiles the innermost modules of placement and fairness with mypyc.

`./dev build --compiled` and `./dev test --compiled` run this file in a separate virtual
environment, which has mypyc. A C compiler is also needed.

    python deploy/compiled_wheel.py libraries FOLDER    # compile in a copy of the sources
    python deploy/compiled_wheel.py wheel FOLDER WHEEL  # add the libraries to a wheel

The sources stay in the wheel. Python prefers a library to a source with the same name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from mypyc.build import mypycify
from setuptools import setup

ENGINE = "resource_manager/engine"
MODULES = (
    "finegrain/intervals.py",
    *(
        f"{ENGINE}/fairness/{name}.py"
        for name in (
            "choice", "clock", "flows", "job_heaps", "quotas", "siblings", "tournament",
        )
    ),
    *(
        f"{ENGINE}/placement/{name}.py"
        for name in ("index", "ledger", "placer", "policies", "search", "tentative")
    ),
    f"{ENGINE}/queue/order.py",
)  # fmt: skip
"""The modules in which a scheduling pass spends most of its time. `queue/scheduling_classes.py` is
missing, because a compiled class with `__lt__` alone has no hash.
"""


def compile_in(folder: Path) -> None:
    """Compiles the modules in a copy of the sources, and puts the libraries beside them."""
    os.chdir(folder)
    # setuptools would read this file, which is written for hatchling.
    Path("pyproject.toml").rename("pyproject.away")
    sys.path[:0] = [str(folder), str(folder / "client")]
    extensions = mypycify(
        ["--follow-imports=silent", "--ignore-missing-imports", *MODULES],
        group_name="finegrain",
        strip_asserts=False,
    )
    setup(
        name="finegrain",
        packages=[],
        ext_modules=extensions,
        script_args=["-q", "build_ext", "--inplace", "--parallel", str(os.cpu_count() or 1)],
    )
    shutil.rmtree("build")
    Path("pyproject.away").rename("pyproject.toml")


def add_to_wheel(folder: Path, wheel: Path) -> Path:
    """Makes a wheel for this Python and this platform from a wheel without libraries, and deletes
    the wheel without libraries. Returns the new wheel.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    with tempfile.TemporaryDirectory() as name:
        run = [sys.executable, "-m", "wheel"]
        subprocess.run([*run, "unpack", "-d", name, str(wheel)], check=True)
        (unpacked,) = Path(name).iterdir()
        for library in sorted(folder.rglob(f"*{suffix}")):
            shutil.copy(library, unpacked / library.relative_to(folder))
        (about,) = unpacked.glob("*.dist-info/WHEEL")
        text = about.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        about.write_text(text.replace("Tag: py3-none-any", f"Tag: {python}-{python}-{platform}"))
        before = set(wheel.parent.iterdir())
        subprocess.run([*run, "pack", "-d", str(wheel.parent), str(unpacked)], check=True)
        wheel.unlink()
        (made,) = set(wheel.parent.iterdir()) - before
    return made


def main() -> None:
    """Runs one of the commands."""
    command, folder, *more = sys.argv[1:]
    if command == "libraries":
        compile_in(Path(folder).resolve())
    else:
        made = add_to_wheel(Path(folder).resolve(), Path(more[0]).resolve())
        sys.stdout.write(f"{made}\n")


if __name__ == "__main__":
    main()
