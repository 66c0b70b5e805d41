"""Writes a batch's summary to standard output, and its results to results.json and results.csv."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from finegrain.units import format_duration
from finegrain_cli.batch.naming import short_name
from finegrain_cli.option_errors import advised
from finegrain_cli.text.output import API_VERSION, OutputFormat, print_json_line, print_object

if TYPE_CHECKING:
    from finegrain_client.batch.status import BatchStatus
    from finegrain_client.batch.values import ThreadResult

FAILURES_SHOWN = 10
JSON_FILE, CSV_FILE = "results.json", "results.csv"
TAILS = ("stdout_tail", "stderr_tail")


def print_outcome(batch: BatchStatus, form: OutputFormat) -> None:
    """Prints the summary of a batch or, with `jsonl`, the result of each thread on one line."""
    from finegrain_client.batch.status import read_thread_results

    if form is OutputFormat.JSONL:
        for result in read_thread_results(batch.state_file):
            print_json_line(result.to_dict())
        return
    found = read_thread_results(batch.state_file, failed_only=True)
    # A batch can have a million failures, which are too many lines for people.
    if form is not OutputFormat.JSON:
        found = islice(found, FAILURES_SHOWN)
    failures = list(found)
    shown = {**batch_dict(batch), "failures": [each.to_dict() for each in failures]}
    print_object("Batch", shown, form, _text(batch, failures))


def batch_dict(batch: BatchStatus) -> dict[str, Any]:
    """Returns a batch as data for JSON. Of environment variables, the data has only the names."""
    shown = {"batch": short_name(batch), **batch.to_dict()}
    shown["spec"]["env"] = sorted(shown["spec"]["env"])
    return shown


def write_results(batch: BatchStatus) -> None:
    """Writes results.json with all data, and results.csv with one row for each thread.

    Each file is replaced atomically. For a batch without a results directory, the function writes
    nothing.

    Raises:
        OSError: a file cannot be written.
    """
    from finegrain_client.batch.status import read_thread_results

    if not batch.results_dir:
        return
    directory = Path(batch.results_dir)
    directory.mkdir(parents=True, exist_ok=True)

    def results() -> Iterator[dict[str, Any]]:
        return (each.to_dict() for each in read_thread_results(batch.state_file))

    _whole(directory / JSON_FILE, lambda file: _write_json(file, batch, results()))
    _whole(directory / CSV_FILE, lambda file: _write_csv(file, results()))


def _write_json(file: TextIO, batch: BatchStatus, results: Iterable[dict[str, Any]]) -> None:
    head = {"api_version": API_VERSION, "kind": "BatchResults", **batch_dict(batch)}
    # A batch can have a million results. So write the results one at a time, after all other keys.
    text = json.dumps(head, indent=2, ensure_ascii=False)
    file.write(text.removesuffix("\n}") + ',\n  "results": [')
    lines = (json.dumps(each, ensure_ascii=False) for each in results)
    file.writelines(f"{',' if number else ''}\n    {line}" for number, line in enumerate(lines))
    file.write("\n  ]\n}\n")


def _write_csv(file: TextIO, results: Iterable[dict[str, Any]]) -> None:
    writer: Any = None
    for result in results:
        row = {name: value for name, value in result.items() if name not in TAILS}
        # The columns are the keys of the first result. Without results, the file stays empty.
        if writer is None:
            writer = csv.DictWriter(file, list(row))
            writer.writeheader()
        writer.writerow(row)


def _whole(path: Path, write: Callable[[TextIO], None]) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8", newline="") as file:
            write(file)
        # Rename the complete file. A reader then sees the old file or the new file, and never an
        # incomplete file.
        fresh.replace(path)
    finally:
        with suppress(FileNotFoundError):
            fresh.unlink()


def _text(batch: BatchStatus, failures: list[ThreadResult]) -> str:
    progress = batch.progress
    left = progress.threads - progress.ended
    counts = f"{progress.done} done, {progress.failed} failed" + (f", {left} left" if left else "")
    lines = [
        f"batch    {short_name(batch)}",
        f"threads  {progress.threads}: {counts}",
        f"took     {format_duration(progress.elapsed_s)}",
    ]
    if progress.message:
        lines.append(f"stopped  {advised(progress.message)}")
    if batch.results_dir:
        lines.append(f"results  {batch.results_dir}")
    if batch.job_id:
        lines.append(f"job      {batch.job_id}")
    lines += [f"failed   thread {each.index} {_why(each)}" for each in failures]
    if progress.failed > len(failures):
        lines.append(f"         and {progress.failed - len(failures)} more")
    return "\n".join(lines)


def _why(result: ThreadResult) -> str:
    """Returns one line about the end of a thread. The line has the message or the reason, and the
    number of attempts.
    """
    tries = f" ({result.attempts} attempts)" if result.attempts > 1 else ""
    return " ".join((result.message or result.reason).split()) + tries
