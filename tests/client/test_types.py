"""Tests that the public API is typed: correct programs pass strict checks, and wrong programs do
not.
"""

import re
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
    fg.SlotSpec(cpus=1)

def blocking_program() -> None:
    with fg.blocking.connect() as cluster, cluster.job("typed") as job:
        reveal_type(cluster.executors())
        reveal_type(job.request_range(fg.SlotSpec(count=2)).slots())
        (request,) = job.request_slots(fg.SlotSpec())
        with request.granted(timeout_s=1) as slot:
            reveal_type(slot.run(["a"], stdin=[b"in"], output=lambda chunk: print(chunk.data)))
            reveal_type(slot.lost)
            slot.run(["a"], timeout="1")
        for slot in fg.blocking.as_granted([request]):
            reveal_type(slot.reuse_for(request))
            slot.reuse_for(slot)
"""
REVEALED = (
    "finegrain.resources.ResourceProfile",
    "finegrain_client.types.status.TaskResult",
    "list[finegrain_client.types.status.ExecutorStatus]",
    "typing.Iterator[finegrain_client.blocking.generated.Slot]",
    "finegrain_client.blocking.generated.Task",
    "finegrain_client.blocking.handle.Lost",
    "bool",
)
ERRORS = (
    'Unexpected keyword argument "cpus"',
    'Unexpected keyword argument "timeout"',
    'Argument 1 to "reuse_for" of "Slot" has incompatible type "Slot"',
)


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
    revealed = re.findall(r'Revealed type is "(.*)"', ran.stdout)
    assert revealed == list(REVEALED), ran.stdout
    errors = [line for line in ran.stdout.splitlines() if " error: " in line]
    assert len(errors) == len(ERRORS), ran.stdout
    for error, expected in zip(errors, ERRORS, strict=True):
        assert expected in error
