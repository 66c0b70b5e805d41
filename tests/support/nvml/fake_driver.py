"""Compiles the driver for tests, and reads GPUs through it with the real binding.

The binding never unloads a library, so each reading runs in a separate process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from finegrain.topology import HostTopology

FORMAT: Final = """
gpu N UUID BUS_ID MINOR TOTAL_MIB RESERVED_MIB NAME
numa N NODE                     node of the GPU's own memory
cpus N HEX                      mask of the cpus near to it
recovery N ACTION               the recovery action; without the line: not supported
mig N MODE PENDING              1: enabled
part N UUID MIB PROCESSORS NAME an instance of a GPU in MIG mode
link N LINK BUS_ID|switch       an active NVLink
level N M LEVEL                 the nearest common ancestor on the bus
process N PID MIB [mps|graphics] a process that computes, as a client of MPS, or only draws;
                                -1 MIB: the driver does not tell
used N MIB PERCENT              used memory and utilisation
xid N XID COUNT                 events that the driver reports once
ignores_limits N                limits of memory are accepted and not kept
error CALL N|-1 CODE            the call fails, for GPU N or for all; CALL *: all calls
hang CALL SECONDS               the call takes as long
"""
"""The allowed lines of a profile; any other line ends the process."""

_SOURCE: Final = Path(__file__).with_name("driver.c")
_PROGRAM: Final = """
import json, sys
from pathlib import Path
from task_executor.host.detection import detect
from task_executor.host.nvml import PynvmlSource
print(json.dumps(detect(Path(sys.argv[1]), PynvmlSource()).to_dict()))
"""


class FakeDriver:
    """The compiled library, in a separate folder: `folder`, for LD_LIBRARY_PATH."""

    def __init__(self, folder: Path, *, is_old: bool = False) -> None:
        """Compiles the driver.

        Args:
            folder: for the library and profiles.
            is_old: leave out the functions that came with version 615.

        Raises:
            RuntimeError: there is no compiler, or the compiler does not accept the source.
        """
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise RuntimeError("the driver for tests needs a C compiler: apt-get install gcc")
        self.folder = folder
        library = folder / "libnvidia-ml.so.1"
        command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        command += ["-DBEFORE_615"] if is_old else []
        done = subprocess.run(
            [*command, "-o", str(library), str(_SOURCE)], capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise RuntimeError(f"{compiler} does not accept {_SOURCE.name}: {done.stderr}")

    def run(self, profile: str, program: str, *arguments: str) -> Any:
        """Returns the JSON that a Python program prints in a process with this driver.

        Args:
            profile: lines as in `FORMAT`.
            program: source of the program.
            arguments: of the program.
        """
        path = self.folder / "profile"
        path.write_text(profile)
        return self.run_with(path, program, *arguments)

    def run_with(self, path: Path, program: str, *arguments: str) -> Any:
        """Returns the JSON that a Python program prints, with the profile in a file."""
        mine = {"LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML_PROFILE": str(path)}
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=os.environ | mine,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise RuntimeError(f"the program ended with {done.returncode}: {done.stderr[-2000:]}")
        return json.loads(done.stdout)

    def detect(self, profile: str, root: Path) -> HostTopology:
        """Returns the machine whose files are below `root`, with the GPUs of a profile."""
        return HostTopology.from_dict(self.run(profile, _PROGRAM, str(root)))
