"""The privileged process: `python -m task_executor.helper CONFIG`.

CONFIG is JSON, or the path of a JSON file. The process starts, detaches (or notifies systemd), and
answers at its socket until it must stop. Tasks continue without it.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from task_executor.helper.cgroups import choose_driver
from task_executor.helper.cgroups.base import Kernel
from task_executor.helper.child import spare_from_oom
from task_executor.helper.forks import become_subreaper, close_all_but, default_signals
from task_executor.helper.kubelet import KubeletFiles
from task_executor.helper.launch import EXIT_CONFIG, EXIT_IN_USE, HelperConfig, digest
from task_executor.helper.loop import Job, Loop
from task_executor.helper.parking import move
from task_executor.helper.paths import boot_id, read_json, write_json
from task_executor.helper.protocol import (
    CONFIG,
    HELPER_VERBS,
    PROTOCOL_VERSION,
    Fault,
    check_fields,
)
from task_executor.helper.server import FrameServer, listen
from task_executor.helper.slots import Slots, slot_name
from task_executor.helper.tasks import Tasks

_PAGE = 400  # slots and tasks per answer; fits into one frame
_REMOVE_BASE_S = 3600.0  # the removal of scratch directories may take this long


class Helper:
    """The helper's slots and tasks, with one method per verb of the protocol."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        state = Path(config["state_dir"])
        known = read_json(state / "helper.json") or {}
        # A reboot removes all groups, so a base of an earlier boot no longer exists.
        base = known.get("base") if known.get("boot_id") == boot_id() else None
        if base and next((state / "slots").glob("*.json"), None):
            config = config | {"isolation": "auto"}  # existing slots in cgroups stay in them
        self.driver = choose_driver(config, Kernel(), base)
        found = {"boot_id": boot_id(), "base": self.driver.base}
        if found != known:  # so that a restart works on a full disk
            write_json(state / "helper.json", found)
        self.loop = Loop(_reap)
        self.tasks = Tasks(self.loop, config, self.driver, self.send_event)
        self.slots = Slots(state, self.driver, self.tasks.shims_of)
        self.kubelet_files = KubeletFiles(config["kubelet_dir"], config["kubelet_config"])
        listener = listen(Path(config["socket_path"]), config["front_uid"], config["front_gid"])
        uids = {0, os.geteuid(), config["front_uid"]}
        self.server = FrameServer(self.loop, listener, uids, HELPER_VERBS, self.handle)
        self.holder_fd = os.pidfd_open(config["holder_pid"]) if config["holder_pid"] else -1
        if self.holder_fd >= 0:
            self.loop.watch(self.holder_fd, self._on_holder_exit)
        # Tasks before slots: to finish a resize, the shims of the slot's tasks must be known.
        self.tasks.adopt()
        for unfinished in self.slots.adopt():
            self.loop.run(unfinished)
        self.strangers: list[dict[str, Any]] = []  # not reported to a front yet
        # After the adoption, because every group without an adopted slot is killed.
        self._destroy_strangers()

    def send_event(self, event: dict[str, Any]) -> None:
        self.server.broadcast(event)

    def handle(self, verb: str, args: dict[str, Any]) -> Any:
        return getattr(self, verb)(args)  # safe: the server has checked that the verb is known

    def hello(self, _args: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocol_version": PROTOCOL_VERSION,
            "executor_id": self.config["executor_id"],
            "config": digest(HelperConfig(**self.config)),
            "pid": os.getpid(),
            "boot_id": boot_id(),
            "uid": os.geteuid(),
            "isolation": self.driver.report(),
        }

    def create_slot(self, args: dict[str, Any]) -> dict[str, Any]:
        return self.slots.create(args)

    def resize_slot(self, args: dict[str, Any]) -> Job:
        return self.slots.resize(args)

    def place_slots(self, args: dict[str, Any]) -> Job:
        return self.slots.place(args["slots"])

    def park_slot(self, args: dict[str, Any]) -> Job:
        name, order = self.slots.need(args), {"park": True}
        return move(self.slots, self.driver, name, order, args["memory_bytes"])

    def unpark_slot(self, args: dict[str, Any]) -> Job:
        order = {"park": False, "device_map": args["device_map"]}
        return move(self.slots, self.driver, self.slots.need(args), order)

    def destroy_slot(self, args: dict[str, Any]) -> Job:
        return self.slots.destroy(slot_name(args), args["grace_ms"] / 1000)

    def start_task(self, args: dict[str, Any]) -> Job:
        # Checked now for an early error, and again in the lambda, because the slot may be destroyed
        # while the start waits.
        self.slots.need(args)
        return self.tasks.start(args, lambda: self.slots.limits[self.slots.need(args)])

    def limit_task(self, args: dict[str, Any]) -> Job:
        def slot_bytes(name: str) -> int:
            return int(self.slots.limits[name]["memory_bytes"]) if name in self.slots.limits else 0

        return self.tasks.limit(args["task_id"], args["memory_limit_bytes"], slot_bytes)

    def signal_task(self, args: dict[str, Any]) -> Job:
        return self.tasks.ask(args.pop("task_id"), "signal", args)

    def kill_task(self, args: dict[str, Any]) -> Job:
        return self.tasks.ask(args.pop("task_id"), "kill", args)

    def write_input(self, args: dict[str, Any]) -> Job:
        return self.tasks.ask(args.pop("task_id"), "input", args)

    def forget_task(self, args: dict[str, Any]) -> Job:
        return self.tasks.forget(args["task_id"])

    def _destroy_strangers(self) -> None:
        """Kills groups in the folder of slots that have no record; `inspect` reports them."""
        for name in self.slots.strangers():
            pids = sorted(self.driver.pids(self.driver.slot(name), []))
            sys.stderr.write(f"{name} is not a known slot: killed with processes {pids[:10]}\n")
            self.strangers.append({"group": name[:200], "pids": pids[:10]})
            self.loop.run(self.slots.destroy(name))

    def inspect(self, args: dict[str, Any]) -> dict[str, Any]:
        """Returns a page of slots and tasks.

        The first page kills unknown groups, the last one reports them.
        """
        if not args["after"]:
            self._destroy_strangers()
        slots, tasks, after = self._page(args["after"])
        # Empty rules are left out: fronts of version 0.2 accept no further fields.
        described = [
            {k: v for k, v in self.slots.limits[n].items() if v or not k.startswith("devices_")}
            | {"destroying": n in self.slots.destroying}
            for n in slots
        ]
        # The last page reports the unknown groups, so that a front which stops half-way misses
        # none.
        pending = [] if after else self.strangers[:_PAGE]
        del self.strangers[: len(pending)]
        return {
            "slots": described,
            "tasks": [self.tasks.known[t].describe() for t in tasks],
            "after": after,
            "strangers": pending,
        }

    def usage(self, args: dict[str, Any]) -> dict[str, Any]:
        slots, tasks, after = self._page(args["after"])
        names = ("allocation_id", "generation")
        of_slots = []
        for name in slots:
            identity = {key: self.slots.limits[name][key] for key in names}
            of_slots.append(identity | self.driver.counters(self.driver.slot(name)))
        running = [self.tasks.known[t] for t in tasks if not self.tasks.known[t].exit]
        of_tasks = [{"task_id": t.id} | self.driver.counters(t.record["group"]) for t in running]
        return {"slots": of_slots, "tasks": of_tasks, "after": after}

    def devices(self, _args: dict[str, Any]) -> dict[str, str]:
        # Not a part of `report`: fronts of version 0.2 accept no further fields there.
        return {"problem": self.driver.devices_problem}

    def kubelet(self, args: dict[str, Any]) -> dict[str, Any]:
        return self.kubelet_files.read(args["seen"])

    def _page(self, after: str) -> tuple[list[str], list[str], str]:
        """Returns slots and tasks with names after `after`, and the name to continue after.

        That name is empty on the last page.
        """
        # Sorted by name, so that an item that is added or removed between two pages shifts no other
        # item.
        both = sorted({*self.slots.limits, *self.tasks.known})
        names = [name for name in both if name > after][:_PAGE]
        slots = [name for name in names if name in self.slots.limits]
        tasks = [name for name in names if name in self.tasks.known]
        # A full page may be the last one. The next page is then empty.
        return slots, tasks, names[-1] if len(names) == _PAGE else ""

    def stop(self, _args: dict[str, Any]) -> dict[str, Any]:
        """Stops the helper after the answer was sent. Tasks continue; empty groups are removed."""
        self.loop.later(0.05, self._request_stop)
        return {}

    def _on_holder_exit(self, _events: int) -> None:
        """Stops, because only tasks keep the scope alive now.

        The next start gets or makes a new holder.
        """
        sys.stderr.write("the process that keeps the scope has ended: starting again\n")
        self._request_stop()

    def _request_stop(self, *_signal: Any) -> None:
        self.loop.running = False

    def serve(self) -> None:
        """Serves until it must stop.

        If no slot or task is left, it then removes the groups. By then nothing is locked, so a new
        helper may start meanwhile and owns the groups.
        """
        self.loop.serve()
        # The lock of the state directory is still held here, so this is not the socket of a new
        # helper.
        Path(self.config["socket_path"]).unlink(missing_ok=True)
        running = not all(task.exit for task in self.tasks.known.values())
        if running or self.slots.limits or self.tasks.unidentified:
            return
        # What follows only removes empty groups, and any signal may end it.
        default_signals()
        if self.holder_fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.holder_fd, signal.SIGKILL)  # removes the scope
        # This releases all locks: a new helper can start while the groups are being removed.
        close_all_but((0, 1, 2))
        end = time.monotonic() + _REMOVE_BASE_S
        while self.driver.remove_base() and time.monotonic() < end:
            time.sleep(0.05)


def _reap() -> None:
    """Reaps shims, and orphans of shims that were killed. Their ends are noticed by pidfd."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _notify_systemd(message: str) -> None:
    if path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(message.encode(), path.replace("@", "\0", 1))


def main(argument: str) -> int:
    """Runs the helper. If it detaches, this returns 0 in the first process once the socket answers,
    and the helper continues in a fork.

    Returns:
        The exit status.
    """
    try:
        text = argument if argument.startswith("{") else Path(argument).read_text()
        config = check_fields("configuration", json.loads(text), CONFIG)
        state = Path(config["state_dir"])
        state.mkdir(mode=0o750, parents=True, exist_ok=True)
        # The lock comes first: two helpers in one state directory would adopt the same slots.
        lock = os.open(state / "helper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"another helper holds {argument}\n")
        return EXIT_IN_USE
    except (OSError, ValueError, Fault) as error:
        sys.stderr.write(f"helper: {error}\n")
        return EXIT_CONFIG
    ready, up = os.pipe()
    if config["detached"] and os.fork():
        os.close(up)
        # End of file without a byte means that the fork has ended before it could answer.
        return 0 if os.read(ready, 1) else EXIT_CONFIG
    with suppress(PermissionError):  # under systemd this process leads a session already
        os.setsid()
    os.chdir("/")
    become_subreaper()
    # The kernel should kill a task first: without the helper no slot can be freed.
    spare_from_oom(-900)
    # Neither Ctrl-C nor a closed terminal or log ends the helper. SIGTERM and the verb `stop` do.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    try:
        helper = Helper(config)
    except (OSError, Fault) as error:
        sys.stderr.write(f"helper: {error}\n")
        if config["holder_pid"] and not any((state / "slots").glob("*.json")):
            with suppress(ProcessLookupError):
                os.kill(config["holder_pid"], signal.SIGKILL)  # no slot is left in its scope
        return EXIT_CONFIG
    if not config["detached"]:
        signal.signal(signal.SIGTERM, helper._request_stop)
        _notify_systemd("READY=1")
    os.write(up, b"1")
    os.close(up)
    os.close(ready)
    # Shims are forks. Objects that the collector no longer visits keep their pages shared with
    # them.
    gc.collect()
    gc.freeze()
    helper.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
