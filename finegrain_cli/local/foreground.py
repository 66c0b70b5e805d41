"""Implements `finegrain up`, which runs a local cluster in the foreground.

This module prints the messages for people. It stops all daemons after Ctrl-C, after SIGTERM, and
when the terminal is closed. It also stops all daemons when one daemon has ended by itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from finegrain.directories import default_credentials_file
from finegrain.errors import FinegrainError
from finegrain.identity import Role
from finegrain.resources import CPU_MILLI, MEMORY_BYTES, MIB
from finegrain.units import format_cpu, format_duration
from finegrain_cli.local.published import published
from finegrain_cli.text.columns import amounts_text
from finegrain_cli.text.output import API_VERSION, OutputFormat, print_json_line, say

if TYPE_CHECKING:
    from finegrain_cli.local.cluster import LocalCluster
    from finegrain_cli.local.task_user import TaskUser
    from finegrain_client.types.status import ExecutorStatus

GUEST = "guest"
"""Name of the user that logs in with the token that `up` prints."""
GUEST_TTL_S = 24 * 3600
JSON = (OutputFormat.JSON, OutputFormat.JSONL)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Stopped(Exception):
    """A termination signal arrived."""


def run_in_foreground(cluster: LocalCluster, output: OutputFormat) -> None:
    """Starts the cluster, prints its addresses, and serves until a signal arrives.

    Raises:
        ConfigurationError: the cluster did not start.
        FinegrainError: a daemon ended by itself, or a process, group or directory was left behind.
    """
    failure: FinegrainError | None = None
    with _stop_signals():
        try:
            cluster.start()
            with published(_note(cluster)):
                _announce(cluster, output)
                cluster.wait()
        except _Stopped:
            _say("stopping: slots are freed, tasks ended")
        except FinegrainError as error:
            failure = error
        finally:
            # Stop in `finally`, because a signal can arrive while the cluster starts.
            left = cluster.stop()
    for each in left:
        _say(f"left behind: {each}")
    if failure:
        raise failure
    if left:
        raise FinegrainError(f"{len(left)} items were left behind, see above")
    _say("stopped; nothing is left behind")


def _note(cluster: LocalCluster) -> dict[str, Any]:
    return {
        "address": cluster.address,
        "metrics_address": cluster.metrics_address,
        "web_address": cluster.web_address,
        "pid": os.getpid(),
        "state_dir": str(cluster.state_dir),
        "rm_state_dir": str(cluster.credentials_file.parent),
        "credentials_file": str(cluster.credentials_file),
    }


def _announce(cluster: LocalCluster, output: OutputFormat) -> None:
    from finegrain_client import blocking

    with blocking.connect((cluster.address,), credentials=cluster.credentials_file) as client:
        # With `--scale` no executor runs at the start.
        executors = [] if cluster.scaled else client.executors()
        # Create no token for JSON, because JSON is often logged.
        guest = (
            client.create_token(Role.USER, GUEST, ttl_s=GUEST_TTL_S) if output not in JSON else None
        )
    if guest is None:
        metrics = {each.executor_id: each for each in cluster.notes}
        rows = [
            {
                "executor_id": each.executor_id,
                "address": each.address,
                "metrics_address": metrics[each.executor_id].metrics_address,
                "pid": metrics[each.executor_id].pid,
                "total": dict(each.total),
                "isolation": each.isolation.to_dict() if each.isolation else None,
            }
            for each in executors
        ]
        line = {"api_version": API_VERSION, "kind": "LocalCluster"}
        users = {
            "task_user": user.name if (user := cluster.task_user.user) else None,
            "users": "shared with the daemons" if cluster.task_user.is_shared else "separate",
        }
        document = {**line, **_note(cluster), **users, "executors": rows, "scale": _scale(cluster)}
        print_json_line(document)
        return
    # For people, print addresses, limits that are not enforced, and commands to try.
    say(f"resource manager  {cluster.address}  metrics http://{cluster.metrics_address}/metrics")
    say(f"HTTP interface    https://{cluster.web_address}/v1/openapi.json")
    for each in executors:
        say(f"executor          {each.address}  {each.executor_id}: {amounts_text(each.total)}")
    if scale := _scale(cluster):
        idle = format_duration(scale["idle_timeout_s"])
        say(
            f"executors         none now, up to {scale['executors_max']} on demand, each "
            f"{amounts_text(scale['total'])}; stopped after {idle} without slots"
        )
    say(f"state             {cluster.state_dir}")
    say(f"tasks run as      {_user(cluster.task_user)}")
    for text in _not_enforced(executors):
        say(text)
    say("")
    say("try, in another terminal of the same user:")
    say(f"  finegrain run {_example_size(cluster)} -- python3 -c 'print(42)'")
    say("  finegrain providers" if cluster.scaled else "  finegrain executors -o wide")
    say("  finegrain status")
    say("  finegrain web")
    say("from elsewhere as the same user:")
    say(f"  export FINEGRAIN_CREDENTIALS={cluster.credentials_file}")
    say(f"as another user of this host, once, within {GUEST_TTL_S // 3600} hours (user/{GUEST}):")
    say(f"  finegrain login --token {guest.token}")
    say("for a user with a name: finegrain token create --user NAME")
    if (file := default_credentials_file()).exists():
        say(f"until this stops, your commands use this cluster, not the one in {file}")
    say("Ctrl-C stops everything.")


def _example_size(cluster: LocalCluster) -> str:
    """Returns the options `--cpu` and `--memory` of the example command. The values are at most the
    amounts of a new executor.
    """
    total = cluster.scaled.total if cluster.scaled else {}
    cpu_milli = min(500, total.get(CPU_MILLI, 500))
    memory_bytes = min(256 * MIB, total.get(MEMORY_BYTES, 256 * MIB))
    return f"--cpu {format_cpu(cpu_milli)} --memory {memory_bytes // MIB}M"


def _scale(cluster: LocalCluster) -> dict[str, Any] | None:
    """Returns the settings of scaling for JSON, or None if `--scale` was not given."""
    if cluster.scaled is None:
        return None
    scale = cluster.scaled.scale
    return {
        "executors_max": scale.executors_max,
        "shape": cluster.scaled.shape,
        "total": cluster.scaled.total,
        "idle_timeout_s": scale.idle_timeout_ms / 1000,
    }


def _not_enforced(executors: list[ExecutorStatus]) -> list[str]:
    """Returns one line for each limit that is not enforced, and then one line for each reason, with
    its fix.

    If several limits have the same reason, the reason is printed once.
    """
    notes = [note for each in executors if each.isolation for note in each.isolation.notes]
    whats = dict.fromkeys(note.partition(" (")[0] for note in notes)
    whys = dict.fromkeys(note.partition(" (")[2] for note in notes)
    return [f"not enforced      {what}" for what in whats] + [
        "because           " + why.replace("); ", "; to have it enforced: ") for why in whys if why
    ]


def _user(task_user: TaskUser) -> str:
    user = task_user.user
    name = user.name if user else f"uid {os.geteuid()}"
    if not task_user.is_shared:
        return name
    power = " and have all privileges" if os.geteuid() == 0 else ""
    shared = "users: shared with the daemons, so tasks can read their keys"
    return f"{name}, who started this; {shared}{power}"


def _say(message: str) -> None:
    """Prints a line. A closed terminal is not an error."""
    try:
        say(message)
    except OSError:
        pass


@contextmanager
def _stop_signals() -> Iterator[None]:
    is_stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_stopping
        # Ignore a second signal, because it must not interrupt the stop that the first signal has
        # begun.
        if is_stopping:
            return
        is_stopping = True
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
