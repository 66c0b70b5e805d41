"""Defines the specification of a batch: command, slots, retries, and when to stop.

The specification is checked before the resource manager is called. The specification also returns
the command and environment of each attempt.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from typing import Any, Literal

from finegrain.errors import InvalidArgument
from finegrain.ids import check_text
from finegrain.resources import MIB
from finegrain.values.dependencies import JobDependency
from finegrain_client.dependencies import dependencies, dependencies_from_json
from finegrain_client.specs import RANGE_MAX, SlotSpec, check_priority

RETRIES_MAX = 1_000
OUTPUT_LIMIT_DEFAULT_BYTES = 16 * MIB
OWN_VARIABLES = "FINEGRAIN_"

_PLACE = re.compile(r"\{\{(index|threads|attempt)\}\}|\{(index|threads|attempt)\}")


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """A command to run once for each of `threads` threads of work.

    In the command and in values of the environment, `{index}` (0 to threads - 1), `{threads}` and
    `{attempt}` (1, 2, ...) are replaced. `{{index}}` becomes the text `{index}`. The environment of
    the task contains these values as FINEGRAIN_BATCH_INDEX, FINEGRAIN_BATCH_THREADS and
    FINEGRAIN_BATCH_ATTEMPT, and also contains FINEGRAIN_BATCH_ID.

    Attributes:
        threads: number of threads of work, 1 to 1,000,000.
        command: program and arguments, which run without a shell.
        slot: slot of each thread, with count 1 and no `target_address`. `restart_on_loss` and
            `restart_on_device_loss` are ignored: the request of a lost slot is always queued again.
        name: name for people to read, 1 to 200 printable characters.
        priority: order of the batch within its group, -100 to 100; the highest is served first.
        group: resource group. If it is empty, the rules of the groups choose the group; if no rule
            matches, the group is "default".
        job_labels: labels of the batch's job, which the rules of the groups can use.
        after: jobs that must end before the first thread starts: a `JobDependency`, or the id of a
            job that must succeed. If a job ends in another way, the batch stops.
        env: the whole environment of the task. PATH and HOME have defaults.
        cwd: absolute working directory; an empty value means a scratch directory of the task.
        user: user that the command runs as; an empty value means the executor's task user.
        timeout_s: after this time in seconds, a thread is ended and fails; None means that there is
            no limit.
        retries: number of times that a failed thread is tried again. A lost slot is not a failure.
        retry_delay_s: delay before the first retry of a thread. The delay doubles with each further
            retry, up to 60 s.
        on_failure: what happens when a thread has failed and has no retries left. With "continue",
            the other threads continue. With "stop", no more threads start, and running threads
            finish.
        failures_max: the batch also stops when more than this number of threads have failed and
            have no retries left; None means that there is no limit.
        speculate: if true, a thread can run a second time: if it takes far longer than other
            threads, and if no thread waits. The first run that succeeds counts, and the other run
            is cancelled.
        straggler_factor: "far longer" means more than this multiple of the 95th percentile of the
            finished threads' durations.
        slots_max: maximum number of slots at one time; 0 means no limit.
        output_limit_bytes: bytes that are kept of each of the two output streams of a thread.
    """

    threads: int
    command: Sequence[str]
    _: KW_ONLY
    slot: SlotSpec = field(default_factory=SlotSpec)
    name: str = "batch"
    group: str = ""
    after: Sequence[JobDependency | str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    user: str = ""
    timeout_s: float | None = None
    retries: int = 2
    retry_delay_s: float = 1.0
    on_failure: Literal["continue", "stop"] = "continue"
    failures_max: int | None = None
    speculate: bool = False
    straggler_factor: float = 2.0
    slots_max: int = 0
    output_limit_bytes: int = OUTPUT_LIMIT_DEFAULT_BYTES
    priority: int = 0
    job_labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Store a tuple, so that the caller cannot change the command later.
        object.__setattr__(self, "command", tuple(os.fspath(each) for each in self.command))
        object.__setattr__(self, "after", dependencies(self.after))
        _check_whole("threads", self.threads, 1, RANGE_MAX)
        if not self.command or not self.command[0]:
            raise InvalidArgument("command", list(self.command), "a program and its arguments")
        if self.slot.count != 1 or self.slot.allocation_id or self.slot.target_address:
            expected = "a slot spec without count, allocation_id and target_address"
            raise InvalidArgument("slot", self.slot, expected)
        check_text("name", self.name, longest=200)
        check_priority("priority", self.priority)
        for name in self.env:
            if name.startswith(OWN_VARIABLES):
                raise InvalidArgument("env", name, f"names that do not begin with {OWN_VARIABLES}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidArgument("timeout_s", self.timeout_s, "None, or more than 0 seconds")
        _check_whole("retries", self.retries, 0, RETRIES_MAX)
        if not 0 <= self.retry_delay_s <= 86_400:
            raise InvalidArgument("retry_delay_s", self.retry_delay_s, "0 to 86400 seconds")
        if self.on_failure not in ("continue", "stop"):
            raise InvalidArgument("on_failure", self.on_failure, '"continue" or "stop"')
        if self.failures_max is not None:
            _check_whole("failures_max", self.failures_max, 0, RANGE_MAX)
        if not self.straggler_factor >= 1:
            raise InvalidArgument("straggler_factor", self.straggler_factor, "a number, at least 1")
        _check_whole("slots_max", self.slots_max, 0, RANGE_MAX)
        _check_whole("output_limit_bytes", self.output_limit_bytes, 1, 2**40)

    def command_of(self, index: int, attempt: int) -> list[str]:
        """Returns the command of one attempt at one thread."""
        return [self._filled(each, index, attempt) for each in self.command]

    def env_of(self, batch_id: str, index: int, attempt: int) -> dict[str, str]:
        """Returns the environment of one attempt.

        Args:
            batch_id: id of the batch.
            index: index of the thread.
            attempt: number of the attempt; the first attempt is 1.
        """
        return {name: self._filled(value, index, attempt) for name, value in self.env.items()} | {
            "FINEGRAIN_BATCH_ID": batch_id,
            "FINEGRAIN_BATCH_INDEX": str(index),
            "FINEGRAIN_BATCH_THREADS": str(self.threads),
            "FINEGRAIN_BATCH_ATTEMPT": str(attempt),
        }

    def retry_after_s(self, failures: int) -> float:
        """Returns the delay before the next try of a thread, in seconds. The thread has already
        failed `failures` times.
        """
        # Limit the exponent, because a large exponent would overflow the float. The delay is never
        # below `retry_delay_s`.
        return min(self.retry_delay_s * 2.0 ** min(failures - 1, 30), max(60.0, self.retry_delay_s))

    def to_json(self) -> str:
        """Returns the spec as text for the state file. Equal specs have equal texts."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> BatchSpec:
        """Reads the output of `to_json`. Ignores fields that only a later version knows."""
        data: dict[str, Any] = json.loads(text)
        slot = SlotSpec(**_known(SlotSpec, data.pop("slot")))
        after = dependencies_from_json(data.pop("after", ()))
        return cls(slot=slot, after=after, **_known(cls, data))

    def _filled(self, text: str, index: int, attempt: int) -> str:
        values = {"index": index, "threads": self.threads, "attempt": attempt}

        def fill(found: re.Match[str]) -> str:
            literal, name = found.groups()
            # Replace in one pass over the text, so that a filled-in value is not replaced again.
            return f"{{{literal}}}" if literal else str(values[name])

        return _PLACE.sub(fill, text)


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in data.items() if name in names}


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(name, value, f"an integer from {least} to {most}")
