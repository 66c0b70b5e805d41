"""Hashes every file in a batch, which uses as many slots at one time as the cluster grants.

    python examples/batch.py FILE...

If the program was killed or interrupted, run it again with the same `--state`: the program
continues where it stopped. The files must exist on the hosts of the executors. The program reads
FINEGRAIN_MANAGER and FINEGRAIN_CREDENTIALS.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import finegrain_client as fg


def show(progress: fg.batch.Progress) -> None:
    """Prints one line for each change of the progress."""
    rest = f", about {progress.estimate.remaining_s:.0f} s left" if progress.estimate else ""
    print(f"{progress.ended} of {progress.threads} done{rest}", file=sys.stderr)


async def hash_files(cluster: fg.Cluster, files: Sequence[Path], state: Path) -> dict[Path, str]:
    """Returns the SHA-256 of each file, in hex; raises `BatchFailed` if a file cannot be hashed."""
    program = 'shift "$FINEGRAIN_BATCH_INDEX"; exec sha256sum < "$1"'
    spec = fg.BatchSpec(
        len(files),
        ["sh", "-c", program, "sh", *(str(each.absolute()) for each in files)],
        slot=fg.SlotSpec(cpu_milli=200, memory_bytes=32 * fg.MIB),
        name="hashes",
    )
    batch = fg.BatchJob(cluster, spec, state_file=state)
    (await batch.run(show)).check()
    return {files[each.index]: each.stdout_tail[:64].decode() for each in batch.results()}


async def main(argv: Sequence[str]) -> None:
    """Prints the hashes in the format of `sha256sum`."""
    parser = argparse.ArgumentParser(description="Hash files on a cluster.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--state", type=Path, help="state file, to resume after an interruption")
    options = parser.parse_args(argv)
    state = options.state or fg.batch.default_state_file("hashes")
    async with fg.connect() as cluster:
        hashes = await hash_files(cluster, options.files, state)
    for file, digest in hashes.items():
        print(f"{digest}  {file}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except fg.FinegrainError as failure:
        sys.exit(f"error: {failure}")
