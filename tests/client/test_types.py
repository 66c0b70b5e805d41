"""The public API is typed: programs written against it pass strict checks, wrong ones do not."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import finegrain_client as fg

async def program() -> None:
    async with fg.connect() as cluster, cluster.job("typed") as job:
        (request,) = await job.request_slots(fg.SlotSpec(cpu_milli=1))
        slot = await request.granted(timeout_s=1)
        reveal_type(slot.profile)
        reveal_type(await (await slot.run(["a"])).wait())
    with fg.blocking.connect() as blocking:
        reveal_type(blocking.executors())
    fg.SlotSpec(cpus=1)
"""


@pytest.mark.slow
def test_types_reach_the_programs_of_users(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    examples = sorted((REPOSITORY / "examples").glob("*.py"))
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", program, *examples],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "finegrain.resources.ResourceProfile"' in ran.stdout
    assert 'Revealed type is "finegrain_client.types.status.TaskResult"' in ran.stdout
    assert "list[finegrain_client.types.status.ExecutorStatus]" in ran.stdout
    errors = [line for line in ran.stdout.splitlines() if " error: " in line]
    assert len(errors) == 1, ran.stdout
    assert 'Unexpected keyword argument "cpus"' in errors[0]
