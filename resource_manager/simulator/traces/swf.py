"""The Standard Workload Format of the Parallel Workloads Archive.

Source: S. J. Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job
Schedulers" (JSSPP 1999), and D. G. Feitelson's page of the format. Comment lines begin with ";".
Every other line has 18 numbers for one job; -1 means that a value was not recorded.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from finegrain.errors import InvalidArgument
from finegrain.resources import KIB, ResourceProfile
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.rows import Row, lines_of

FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "processors",
    "cpu time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "application",
    "queue",
    "partition",
    "preceding job",
    "think time",
)

_OWNERS = ("user", "group", "queue", "application", "partition")
_PARTS_OF_A_JOB = frozenset({"2", "3", "4"})  # the whole job has another line


def read_swf(path: Path) -> Workload:
    """Returns the jobs of a log. A job of p processors has p parts of one cpu, which start
    together.

    Memory per processor is the requested amount, or the used amount if no request is recorded.

    Raises:
        InvalidArgument: the file cannot be read, or a line is not a record of this format.
    """
    jobs: list[TraceJob] = []
    left_out: Counter[str] = Counter()
    header: dict[str, str] = {}
    for number, line in enumerate(lines_of(path), start=1):
        if line.startswith(";"):
            name, _, value = line.lstrip("; ").partition(":")
            header.setdefault(name.strip(), value.strip())
        elif texts := line.split():
            if len(texts) != len(FIELDS):
                expected = f"{len(FIELDS)} numbers, not {len(texts)}"
                raise InvalidArgument(f"{path.name}, line {number}", line, expected)
            row = Row(dict(zip(FIELDS, texts, strict=True)), path, number)
            job = _job(row, left_out)
            if job is not None:
                jobs.append(job)
    processors = header.get("MaxProcs") or header.get("MaxNodes") or ""
    return Workload(
        name=path.name,
        format="swf",
        jobs=tuple(jobs),
        owner_keys=_OWNERS,
        nodes=f"{processors}x1cpu" if processors.isdigit() and int(processors) else "",
        left_out=left_out,
    )


def _job(row: Row, left_out: Counter[str]) -> TraceJob | None:
    # Prefer the allocated processors, because these ran for the recorded time.
    processors = row.amount("processors") or row.amount("requested processors")
    if row.text("status") in _PARTS_OF_A_JOB:
        left_out["part of a job that has a separate line"] += 1
    elif row.is_missing("run time"):
        left_out["no run time recorded"] += 1
    elif not processors:
        left_out["no processors recorded"] += 1
    else:
        memory = row.amount("requested memory", factor=KIB) or row.amount("used memory", factor=KIB)
        return TraceJob(
            name=row.text("job number"),
            submit_ms=row.amount("submit time", factor=1_000),
            run_ms=row.amount("run time", factor=1_000),
            count=processors,
            profile=ResourceProfile(1_000, task_heap_memory_bytes=memory),
            waited_ms=row.amount_if_known("wait time", factor=1_000),
            requested_ms=row.amount_if_known("requested time", factor=1_000),
            owners={key: row.text(key) for key in _OWNERS if not row.is_missing(key)},
        )
    return None
