"""Counts the words of files on a cluster: maps each file in a slot, then reduces all the counts.

    python examples/wordcount.py --slots 4 *.txt

The program reads FINEGRAIN_MANAGER and FINEGRAIN_CREDENTIALS, or takes `--manager` and
`--credentials`. It shows the work of a job master: it requests slots, uses each slot as soon as the
slot is granted, runs tasks with input and output, continues after the loss of a slot, and frees all
slots at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import finegrain_client as fg

# Tasks are ordinary commands, which read bytes from standard input and write bytes to standard
# output.
MAP = """
import collections, json, re, sys
words = re.findall(r"[a-z']+", sys.stdin.read().lower())
json.dump(collections.Counter(words), sys.stdout)
"""
REDUCE = """
import collections, json, sys
total = collections.Counter()
for line in sys.stdin:
    total.update(json.loads(line))
json.dump(total, sys.stdout)
"""

SLOT = fg.SlotSpec(cpu_milli=200, memory_bytes=128 * fg.MIB)


async def count_words(cluster: fg.Cluster, files: Sequence[Path], *, slots: int) -> Counter[str]:
    """Counts how often each word occurs in all files.

    Raises:
        fg.RequestRejected: no executor could ever host the slot.
        fg.TaskFailed: a command failed; its standard error is in the message.
    """
    todo: asyncio.Queue[Path] = asyncio.Queue()
    for file in files:
        todo.put_nowait(file)
    partial: dict[Path, bytes] = {}

    # The end of this block ends the job: waiting requests are cancelled, and slots are freed.
    async with cluster.job("wordcount") as job:
        spec = fg.SlotSpec(
            cpu_milli=SLOT.cpu_milli,
            memory_bytes=SLOT.memory_bytes,
            restart_on_loss=True,  # a lost slot is requested again, at its old place in the queue
            count=min(slots, len(files)),
        )
        requests = await job.request_slots(spec)
        async with asyncio.TaskGroup() as mappers:
            for request in requests:
                mappers.create_task(map_files(request, todo, partial, len(files)))
        (last,) = await job.request_slots(SLOT)
        async with await last.granted() as slot:
            return await reduce_counts(slot, [partial[file] for file in files])


async def map_files(
    request: fg.Request, todo: asyncio.Queue[Path], partial: dict[Path, bytes], wanted: int
) -> None:
    """Maps one file after the other in one slot, until all files are mapped."""
    while len(partial) < wanted and not todo.empty():
        slot = await request.granted()
        try:
            async with slot:
                while not todo.empty():
                    file = todo.get_nowait()
                    try:
                        partial[file] = await map_file(slot, file)
                    except BaseException:
                        todo.put_nowait(file)
                        raise
            return
        except fg.SlotLost as error:
            print(f"{error}; its file is mapped again", file=sys.stderr)


async def map_file(slot: fg.Slot, file: Path) -> bytes:
    """Runs the task that counts one file; returns the counts as JSON."""
    task = await slot.run([sys.executable, "-c", MAP], stdin=chunks(file))
    return (await task.wait()).check().stdout


async def chunks(file: Path) -> AsyncIterator[bytes]:
    """Reads a file in pieces, and reads no faster than the task reads."""
    with file.open("rb") as source:
        while data := source.read(256 * 1024):
            yield data


async def reduce_counts(slot: fg.Slot, counts: Sequence[bytes]) -> Counter[str]:
    """Runs the task that adds up all counts."""
    task = await slot.run([sys.executable, "-c", REDUCE], stdin=b"\n".join(counts))
    result = (await task.wait()).check()
    return Counter(json.loads(result.stdout))


async def main(argv: Sequence[str]) -> None:
    """Prints the most frequent words."""
    parser = argparse.ArgumentParser(description="Count the words of files on a cluster.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--slots", type=int, default=4, help="slots at one time (default: 4)")
    parser.add_argument("--manager", help='address of the resource manager, "host:port"')
    parser.add_argument("--credentials", help="credentials file")
    parser.add_argument("--top", type=int, default=10, help="words shown (default: 10)")
    options = parser.parse_args(argv)
    async with fg.connect(options.manager, credentials=options.credentials) as cluster:
        counts = await count_words(cluster, options.files, slots=options.slots)
    for word, count in counts.most_common(options.top):
        print(f"{count:8} {word}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except* fg.FinegrainError as failures:
        sys.exit("\n".join(f"error: {each}" for each in failures.exceptions))
