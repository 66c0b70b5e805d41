"""A batch: the hash of every file, as many at one time as the cluster gives.

    python examples/batch.py FILE...

Run it again with the same --state when it was killed or interrupted: it goes on where it stopped.
Files have to be where the executors are. Reads FINEGRAIN_MANAGER and FINEGRAIN_TOKEN_FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import finegrain_client as fg


def show(progress: fg.batch.Progress) -> None:
    """One line whenever something has changed."""
    rest = f", about {progress.estimate.remaining_s:.0f} s left" if progress.estimate else ""
    print(f"{progress.ended} of {progress.threads} done{rest}", file=sys.stderr)


async def hash_files(cluster: fg.Cluster, files: Sequence[Path], state: Path) -> dict[Path, str]:
    """SHA-256 of each file, in hex; raises BatchFailed where that cannot be had of all."""
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
    """Prints the hashes, as sha256sum does."""
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
