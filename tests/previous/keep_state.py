"""Copies the state directories of an executor whose front and helper run, with tasks of all kinds.

`python -m tests.previous.keep_state FOLDER` with the code of the version whose evidence is wanted
(see make.py), as root on a host with cgroup v1: writes executor-v1 and executor-none.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from task_executor.helper.paths import boot_id
from task_executor.service.checkpoint import encode_document
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    ScriptedRM,
    allocation,
    eventually,
    free,
)

PLACE = "/srv/finegrain/executor"
"""This text replaces, in the stored data, the name of the folder in which the data was made."""

BOOT_ID = "00000000-0000-4000-8000-000000000000"
GROUP = re.compile(r"(/sys/fs/cgroup/\w+)/[^\"]*?(/finegrain/host-a)")
"""The control group in which the generator runs is between the two."""


async def keep(isolation: str, target: Path) -> None:
    """Runs an executor, and copies its files while its tasks run."""
    manager = ScriptedRM(rm_epoch=7)
    await manager.start()
    with tempfile.TemporaryDirectory(prefix="fg-") as folder:
        process = ExecutorProcess(Path(folder), manager.address, {"isolation": isolation})
        try:
            process.start(executor_id="host-a")
            await eventually(lambda: manager.reports, "it reports")
            await _fill(manager, process)
            shutil.copytree(process.state_dir, target, ignore=_left_out)
            tasks = manager.job_master()
            for task_id in ("t-running", "t-freeing"):
                await tasks.cancel(task_id)
                await tasks.watch(task_id)
        finally:
            process.clean_up()
    await manager.stop()
    for path in target.rglob("*.*"):
        if path.is_file():
            path.write_text(neutral(path.read_text(), folder))


def neutral(text: str, folder: str) -> str:
    """Returns a file without the values that belong to the machine on which it was made."""
    text = GROUP.sub(r"\1\2", text.replace(folder, PLACE)).replace(boot_id(), BOOT_ID)
    if not text.startswith('{"version"'):
        return text
    content = json.loads(text)["content"]  # a document with a checksum
    return encode_document(json.loads(content))


async def _fill(manager: ScriptedRM, process: ExecutorProcess) -> None:
    await manager.allocate(allocation("running"), allocation("ended"), allocation("freeing"))
    tasks = manager.job_master()
    await tasks.submit(
        "sh", "-c", "echo begun; cat; exit 7", task_id="t-running", allocation_id="running",
        stdin=True, env={"NAME": "value"},
    )  # fmt: skip
    await tasks.submit("sh", "-c", "echo done; exit 3", task_id="t-ended", allocation_id="ended")
    await tasks.submit("sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done",
                       task_id="t-freeing", allocation_id="freeing")  # fmt: skip
    await tasks.watch("t-ended")
    await eventually(lambda: process.output("t-freeing"), "it ignores SIGTERM")
    await eventually(lambda: process.output("t-running"), "it runs")
    await manager.resize(1, allocation_id="running", cpu_milli=750)
    await manager.free(free("freeing", grace_ms=600_000))


def _left_out(folder: str, names: list[str]) -> list[str]:
    """Sockets, locks and logs of the daemons."""
    kept = [
        name for name in names if not name.endswith((".lock", ".log", ".sock", "endpoint.json"))
    ]
    kept += [name for name in names if name in {"stdout.log", "stderr.log"}]
    regular = [n for n in kept if Path(folder, n).is_dir() or Path(folder, n).is_file()]
    return sorted(set(names) - set(regular))


def main(folder: Path) -> None:
    """Writes both folders."""
    for name, isolation in (("executor-v1", "auto"), ("executor-none", "none")):
        asyncio.run(keep(isolation, folder / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
