"""Runs the helper, the privileged process: `python -m task_executor.helper CONFIG`.

CONFIG is JSON, or the path of a JSON file. The process starts, and detaches or notifies systemd.
Then it answers calls at its socket until it must stop. Tasks continue when the helper stops.
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

from task_executor.helper.agent import run_agent
from task_executor.helper.cgroups import choose_driver
from task_executor.helper.cgroups.base import Kernel
from task_executor.helper.child import spare_from_oom
from task_executor.helper.forks import (
    become_subreaper,
    close_all_but,
    default_signals,
    raise_descriptor_limit,
)
from task_executor.helper.kubelet import KubeletFiles
from task_executor.helper.loop import Job, Loop
from task_executor.helper.parking import move
from task_executor.helper.paths import boot_id, read_json, write_json
from task_executor.helper.protocol import (
    CONFIG,
    EXIT_CONFIG,
    EXIT_IN_USE,
    HELPER_VERBS,
    PROTOCOL_VERSION,
    Fault,
    check_fields,
    config_digest,
)
from task_executor.helper.server import FrameServer, listen
from task_executor.helper.slots import Slots, slot_name
from task_executor.helper.tasks import Tasks

_PAGE = 400  # maximum number of slots and tasks in one answer; so the answer fits into a frame
_LIMIT_S = 10.0  # time limit of a device agent; includes the time in which GPUs start
_ADOPT_S = 5.0  # how long `inspect` waits for supervisors of an earlier helper
_REMOVE_BASE_S = 3600.0  # maximum time for the removal of scratch directories


class Helper:
    """The helper's slots and tasks, with one method per verb of the protocol."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        state = Path(config["state_dir"])
        known = read_json(state / "helper.json") or {}
        # A reboot removes all groups, so the base from before a reboot no longer exists.
        base = known.get("base") if known.get("boot_id") == boot_id() else None
        if base and next((state / "slots").glob("*.json"), None):
            # Existing slots are in cgroups and stay in them, so cgroups are needed.
            config = config | {"isolation": "auto"}
        self.driver = choose_driver(config, Kernel(), base)
        found = {"boot_id": boot_id(), "base": self.driver.base}
        # Write the file only if it changes. So a restart works even on a full disk.
        if found != known:
            write_json(state / "helper.json", found)
        self.loop = Loop(lambda: self.tasks.reap())  # noqa: PLW0108 - `tasks` is made later
        self.tasks = Tasks(self.loop, config, self.driver, self.send_event)
        self.slots = Slots(state, self.driver, self.tasks.supervisors_of)
        self.kubelet_files = KubeletFiles(config["kubelet_dir"], config["kubelet_config"])
        self.is_limiting = False  # True while limits of device memory are being set
        listener = listen(Path(config["socket_path"]), config["front_uid"], config["front_gid"])
        uids = {0, os.geteuid(), config["front_uid"]}
        self.server = FrameServer(self.loop, listener, uids, HELPER_VERBS, self.handle)
        self.holder_fd = os.pidfd_open(config["holder_pid"]) if config["holder_pid"] else -1
        if self.holder_fd >= 0:
            self.loop.watch(self.holder_fd, self._on_holder_exit)
        # Tasks are adopted before slots: to complete a resize, the supervisors of the slot's
        # tasks must be known.
        self.tasks.adopt()
        for unfinished in self.slots.adopt():
            self.loop.run(unfinished)
        # unknown groups that were killed, and must still be reported
        self.strangers: list[dict[str, Any]] = []
        # Kill unknown groups only after the adoption: the method kills every group that belongs to
        # no adopted slot.
        self._destroy_strangers()

    def send_event(self, event: dict[str, Any]) -> None:
        self.server.broadcast(event)

    def handle(self, verb: str, args: dict[str, Any]) -> Any:
        return getattr(self, verb)(args)  # this is safe, because the server has checked the verb

    def hello(self, _args: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocol_version": PROTOCOL_VERSION,
            "executor_id": self.config["executor_id"],
            "config": config_digest(self.config),
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
        # Check the slot now, so that a wrong order fails immediately. The lambda checks the slot
        # again, because the slot can be destroyed while the start waits.
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

    def hold_output(self, args: dict[str, Any]) -> Job:
        return self.tasks.ask(args.pop("task_id"), "hold", args)

    def forget_task(self, args: dict[str, Any]) -> Job:
        return self.tasks.forget(args["task_id"])

    def _destroy_strangers(self) -> None:
        """Kills all groups in the folder of slots that belong to no known slot. `inspect` reports
        the killed groups.
        """
        for name in self.slots.strangers():
            pids = sorted(self.driver.pids(self.driver.slot(name), []))
            sys.stderr.write(f"{name} is not a known slot: killed with processes {pids[:10]}\n")
            self.strangers.append({"group": name[:200], "pids": pids[:10]})
            self.loop.run(self.slots.destroy(name))

    def inspect(self, args: dict[str, Any]) -> Job:
        """Returns a page of slots and tasks.

        The request for the first page kills unknown groups, and the last page reports them.
        """
        end = time.monotonic() + _ADOPT_S
        while self.tasks.is_adopting and time.monotonic() < end:
            yield 0.01
        if not args["after"]:
            self._destroy_strangers()
        slots, tasks, after = self._page(args["after"])
        # Leave out empty rules for devices, because fronts of version 0.2 reject unknown fields.
        described = [
            {k: v for k, v in self.slots.limits[n].items() if v or not k.startswith("devices_")}
            | {"destroying": n in self.slots.destroying}
            for n in slots
        ]
        # Only the last page reports the unknown groups. If a front stops before the last page, the
        # next inspection reports the groups again.
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
        # This is a separate call, because fronts of version 0.2 reject unknown fields in `report`.
        return {"problem": self.driver.devices_problem}

    def limit_device_memory(self, args: dict[str, Any]) -> Job:
        driver, probe = self.driver, args["probe"]
        orders = [(driver.slot(slot_name(each)), each["limits"]) for each in args["slots"]]
        # Use the group of the supervisors for the probe, because supervisors use no device.
        orders += [(driver.supervisors(), probe), (driver.supervisors(), dict.fromkeys(probe, 0))]
        groups = [{"path": at.get("unified"), "limits": most} for at, most in orders]
        # Run one order at a time. So an older order never ends after a newer order.
        while self.is_limiting:
            yield 0.02
        self.is_limiting = True
        try:
            answer = yield from run_agent("device_agent.py", {"groups": groups}, _LIMIT_S)
        finally:
            self.is_limiting = False
        if answer is None:
            message = f"the device agent has failed, or has not answered within {_LIMIT_S:.0f} s"
            raise Fault("INTERNAL", f"{message}; see the helper's log, and run nvidia-smi")
        return answer

    def kubelet(self, args: dict[str, Any]) -> dict[str, Any]:
        return self.kubelet_files.read(args["seen"])

    def _page(self, after: str) -> tuple[list[str], list[str], str]:
        """Returns slots and tasks whose names come after `after`, and the name for the next call.

        The name for the next call is empty on the last page.
        """
        # Sort the items by name. An item can be added or removed between two calls, and the other
        # items must stay on their pages.
        both = sorted({*self.slots.limits, *self.tasks.known})
        names = [name for name in both if name > after][:_PAGE]
        slots = [name for name in names if name in self.slots.limits]
        tasks = [name for name in names if name in self.tasks.known]
        # After a full page, the caller asks again. If there are no more items, the next page is
        # empty.
        return slots, tasks, names[-1] if len(names) == _PAGE else ""

    def stop(self, _args: dict[str, Any]) -> dict[str, Any]:
        """Stops the helper after the answer is sent. Tasks continue. Empty groups are removed."""
        self.loop.later(0.05, self._request_stop)
        return {}

    def _on_holder_exit(self, _events: int) -> None:
        """Stops the helper when the process that holds the scope has ended.

        From now on only tasks keep the scope alive. The next start of the helper starts a new
        holder.
        """
        sys.stderr.write("the process that holds the systemd scope has ended: restarting\n")
        self._request_stop()

    def _request_stop(self, *_signal: Any) -> None:
        self.loop.running = False

    def serve(self) -> None:
        """Serves until the helper must stop. If no slot and no task is left at the end, the method
        first releases all locks and then removes the groups. Because the locks are released, a new
        helper can start during the removal and use the groups.
        """
        self.loop.serve()
        running = not all(task.exit for task in self.tasks.known.values())
        # End the supervisors before the helper ends. As soon as the helper has ended, a front can
        # check that no process is left.
        if not running:
            self.tasks.end_supervisors()
        # This process still has the lock of the state directory, so the path cannot be the socket
        # of a new helper.
        Path(self.config["socket_path"]).unlink(missing_ok=True)
        if running or self.slots.limits or self.tasks.is_adopting:
            return
        # The code below only removes empty groups, so any signal is allowed to end it.
        default_signals()
        if self.holder_fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.holder_fd, signal.SIGKILL)  # removes the scope
        # Release all locks. A new helper can then start while this process removes the groups.
        close_all_but((0, 1, 2))
        end, pause_s = time.monotonic() + _REMOVE_BASE_S, 0.001
        while self.driver.remove_base() and time.monotonic() < end:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)


def _notify_systemd(message: str) -> None:
    if path := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, suppress(OSError):
            sender.sendto(message.encode(), path.replace("@", "\0", 1))


def main(argument: str) -> int:
    """Runs the helper.

    If the helper detaches, it runs in a fork. This function then returns 0 in the first process,
    after the socket has answered.

    Returns:
        The exit status.
    """
    try:
        text = argument if argument.startswith("{") else Path(argument).read_text()
        config = check_fields("configuration", json.loads(text), CONFIG)
        state = Path(config["state_dir"])
        state.mkdir(mode=0o750, parents=True, exist_ok=True)
        # Take the lock first, because two helpers with the same state directory would adopt the
        # same slots.
        lock = os.open(state / "helper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"another helper already runs with the configuration {argument}\n")
        return EXIT_IN_USE
    except (OSError, ValueError, Fault) as error:
        sys.stderr.write(f"helper: {error}\n")
        return EXIT_CONFIG
    ready, up = os.pipe()
    if config["detached"] and os.fork():
        os.close(up)
        # The end of the stream without a byte means that the fork ended before its socket answered.
        return 0 if os.read(ready, 1) else EXIT_CONFIG
    with suppress(PermissionError):  # under systemd, this process is already a session leader
        os.setsid()
    os.chdir("/")
    become_subreaper()
    raise_descriptor_limit()
    # If memory is short, the kernel should kill tasks, and not the helper: without the helper, no
    # slot can be freed.
    spare_from_oom(-900)
    # Ctrl-C, a closed terminal or a closed log must not end the helper. Only SIGTERM and the verb
    # `stop` end it.
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN)
    try:
        helper = Helper(config)
    except (OSError, Fault) as error:
        sys.stderr.write(f"helper: {error}\n")
        if config["holder_pid"] and not any((state / "slots").glob("*.json")):
            with suppress(ProcessLookupError):
                # the scope of the holder contains no slot, so end the scope
                os.kill(config["holder_pid"], signal.SIGKILL)
        return EXIT_CONFIG
    if not config["detached"]:
        signal.signal(signal.SIGTERM, helper._request_stop)
        _notify_systemd("READY=1")
    os.write(up, b"1")
    os.close(up)
    os.close(ready)
    # Supervisors are forks of the helper, and share its memory pages. A page stays shared as long
    # as the garbage collector does not visit the objects in the page.
    gc.collect()
    gc.freeze()
    helper.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
