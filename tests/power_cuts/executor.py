"""The front of a task executor on a machine whose power is cut, as a separate process.

    python -m tests.power_cuts.executor STATE_DIR CREDENTIALS_FILE ADDRESS MANAGER SYNCHRONOUS

The front and its state directory are the real ones. The host is not: its helper keeps slots in
memory only, because a power cut ends every slot of a real host, too. SYNCHRONOUS is `full`, as in
the product, or `normal`: then files are not synced, to show that the checks find the losses.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

from finegrain.cpuset import CpuSet
from finegrain.credentials import read_credentials
from finegrain.logs import configure_logging
from finegrain.options import ListenOptions, LogOptions
from task_executor.engine.slot_table import HostShare
from task_executor.helper.launch import HelperConfig
from task_executor.host.detection import detect
from task_executor.options import TaskExecutorOptions
from task_executor.service.checkpoint import StateDirectory
from task_executor.service.front import Front
from task_executor.service.host_plan import plan_host
from task_executor.service.prepared import Prepared
from task_executor.service.task_users import user_policy
from tests.support.components import REPOSITORY
from tests.task_executor.service.fake_helper import FakeHelper

EXECUTOR_ID = "host-a"
TOTAL = {"cpu_milli": 64_000, "memory_bytes": 64 << 30}


def start(
    state_dir: Path,
    credentials_file: Path,
    address: str,
    rm_address: str,
    log: IO[bytes],
    *,
    synchronous: str = "full",
) -> subprocess.Popen[bytes]:
    """Starts an executor, which registers by itself."""
    words = (str(state_dir), str(credentials_file), address, rm_address, synchronous)
    command = [sys.executable, "-m", "tests.power_cuts.executor", *words]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)


async def serve(state_dir: Path, credentials_file: Path, address: str, rm_address: str) -> None:
    """Serves until the process is killed."""
    options = TaskExecutorOptions(
        state_dir=state_dir,
        run_dir=credentials_file.parent / "run",
        managers=(rm_address,),
        executor_id=EXECUTOR_ID,
        listen=ListenOptions(address),
        log=LogOptions(format="json"),
        task_user="self",
        allow_root_tasks=True,
    )
    configure_logging(options.log)
    directory = StateDirectory.open(state_dir)
    saved = directory.load(EXECUTOR_ID)
    plan = replace(plan_host(options, detect(Path("/"))), share=HostShare(TOTAL, CpuSet.parse("0")))
    helper = FakeHelper(credentials_file.parent / "tasks")
    prepared = Prepared(
        options=options,
        directory=directory,
        saved=saved,
        plan=plan,
        users=user_policy(options),
        credentials=read_credentials(credentials_file),
        helper=HelperConfig(str(state_dir / "helper"), "", EXECUTOR_ID, os.getuid(), os.getgid()),
    )
    front = Front(prepared, helper, await helper.hello())
    await front.start()
    await front.run()


if __name__ == "__main__":
    if sys.argv[5] == "normal":
        os.fsync = os.fdatasync = lambda _descriptor: None  # type: ignore[assignment]
    asyncio.run(serve(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
