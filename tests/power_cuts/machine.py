"""A machine whose power can be cut: a mounted lossy disk, and the one program that runs on it.

A cut first makes the disk fail and only then kills the program. So writes after the cut have no
effect, and messages that the program still sends describe the state before the cut.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.components import REPOSITORY

Program = subprocess.Popen[bytes]


@dataclass
class Machine:
    """`disk` is where the program keeps its state; `image` is what survived the last cut.

    Both are in `folder`, beside files that are not on the disk (logs).
    """

    folder: Path
    seed: int = 0
    cuts: int = 0
    sectors_lost: int = 0
    sectors_kept: int = 0
    names_lost: int = 0
    syncs: int = 0
    program: Program | None = None
    _mount: subprocess.Popen[str] | None = None

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    @property
    def image(self) -> Path:
        return self.folder / "image"

    def power_on(self) -> None:
        """Mounts the disk with what survived the last cut."""
        self.disk.mkdir(exist_ok=True)
        self.image.mkdir(exist_ok=True)
        seed = str(self.seed * 1_000_003 + self.cuts)
        where = (str(self.disk), str(self.image))
        command = [sys.executable, "-m", "tests.power_cuts.mount", *where]
        log = self.folder / "mount.log"
        with log.open("a") as errors:
            self._mount = subprocess.Popen(
                [*command, "--seed", seed],
                cwd=REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        while not self.disk.is_mount():
            if self._mount.poll() is not None:
                raise RuntimeError(f"the lossy disk could not be mounted: {log.read_text()}")
            time.sleep(0.01)

    def cut_power(self) -> None:
        """Makes the disk fail, then kills the program; afterwards `image` has what survived."""
        assert self._mount is not None
        assert self._mount.stdout is not None
        self._mount.send_signal(signal.SIGUSR1)
        word, *numbers = self._mount.stdout.readline().split()
        assert word == "cut", word
        lost, kept, names, syncs = (int(number) for number in numbers)
        self.cuts += 1
        self.sectors_lost += lost
        self.sectors_kept += kept
        self.names_lost += names
        self.syncs += syncs
        self._end()

    def forget(self) -> None:
        """Replaces the disk of a machine that is off by an empty one."""
        shutil.rmtree(self.image, ignore_errors=True)

    def _end(self) -> None:
        if self.program is not None:
            self.program.kill()
            self.program.wait()
            self.program = None
        if self._mount is not None:
            self._mount.terminate()
            self._mount.wait()
            self._mount = None
        if self.disk.is_mount():  # the process that served it died
            subprocess.run(["umount", "--lazy", self.disk], check=False)


@contextmanager
def machine(seed: int) -> Iterator[Machine]:
    """Makes a machine that is off and has an empty disk; removes it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="fg-power-"))  # a short path, because sockets are in it
    made = Machine(folder, seed)
    try:
        yield made
    finally:
        made._end()
        shutil.rmtree(folder, ignore_errors=True)


MISSING = """\
power cuts need root, /dev/fuse, libfuse3 and mfusepy; here: {missing}
  libfuse3: apt-get install libfuse3-3 (Debian; newer ones: libfuse3-4)
  mfusepy:  ./dev setup"""


def what_is_missing() -> str:
    """Returns why no lossy disk can be mounted here; empty: one can."""
    probes: dict[str, Callable[[], bool]] = {
        "not root": lambda: os.geteuid() == 0,
        "no /dev/fuse": lambda: os.access("/dev/fuse", os.R_OK | os.W_OK),
        "no libfuse3 or mfusepy": _fuse_loads,
    }
    found = [why for why, works in probes.items() if not works()]
    return MISSING.format(missing=", ".join(found)) if found else ""


def _fuse_loads() -> bool:
    try:
        import mfusepy  # type: ignore[import-untyped]  # noqa: F401
    except (ImportError, OSError):
        return False
    return True
