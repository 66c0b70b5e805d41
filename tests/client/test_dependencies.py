"""What the client library needs to be installed beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, sys
# A module that is None cannot be imported.
for name in ("cryptography", "pydantic", "typer", "sqlalchemy", "structlog"):
    sys.modules[name] = None
import finegrain_client as fg

async def main():
    async with fg.connect(credentials=sys.argv[1]) as cluster:
        job = cluster.job("bare")
        job._context.registered = True
        print(cluster.identity, await job.serve_offers())
        await job._offers.stop()

assert fg.blocking.connect and fg.batch.BatchSpec and fg.graph_run.GraphJob
asyncio.run(main())
"""


def test_certificates_need_no_library_for_cryptography(alice: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(alice)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("user/alice 127.0.0.1:"), done.stderr
