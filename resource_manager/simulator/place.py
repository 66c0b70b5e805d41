"""Places single requests of another program on a simulated cluster, one after the other.

The other program writes and reads one JSON object per line. So the placements of the resource
manager and of other schedulers can be compared, for the same sequence of requests:

    {"type": "hello", "nodes": [{"id": "n1", "cpu_milli": 96000, "memory_mib": 786432, "gpus": 8,
                                 "model": "V100"}], "gpu_milli_per_device": 1000}
    {"type": "ready", "name": "finegrain"}                                               (answer)
    {"type": "request", "id": 7, "cpu_milli": 6000, "memory_mib": 12288, "num_gpu": 1,
     "gpu_milli": 460, "gpu_spec": ["V100", "T4"]}
    {"id": 7, "node": "n1", "gpus": [3]}                                                 (answer)
    {"type": "release", "id": 7}
    {"type": "end"}

A request that does not fit gets the node `null`. It does not wait. If two nodes are equally good,
the request gets the node that `hello` lists first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from finegrain.devices.device import GPU
from finegrain.devices.request import DeviceRequest
from finegrain.errors import InvalidArgument, InvariantBroken
from finegrain.resources import CPU_MILLI, MEMORY_BYTES, MIB, ResourceProfile
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.engine.model.entities import Instant, RequestSpec
from resource_manager.engine.model.events import (
    Decide,
    Event,
    JobRegistered,
    RegistrationAnswer,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import fresh
from resource_manager.engine.step import step
from resource_manager.simulator.cluster import START_TIME_MS
from resource_manager.simulator.nodes import Node, SimulatedExecutor, equal_gpus
from resource_manager.simulator.plan import simulated
from resource_manager.simulator.traces.gpu_cluster import gpus

GPU_MILLI = 1_000
"""Parts of a GPU in the protocol."""

_AT = Instant(0, START_TIME_MS)
_JOB = "place"


class Placements:
    """A cluster of simulated nodes on which single requests are placed and released.

    Of equally good nodes, the first in `nodes` is used first.
    """

    def __init__(self, nodes: Sequence[Node], settings: EngineSettings | None = None) -> None:
        self._state = fresh(simulated(settings or EngineSettings()), 1, _AT)
        self._executors: dict[str, SimulatedExecutor] = {}
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}  # ids of slots, by the name of the request
        self._tries = 0
        for number, node in enumerate(nodes):
            # The engine uses equally good hosts in the order of their ids.
            key = f"{number:06}"
            self._names[key] = node.name
            executor = SimulatedExecutor(
                Node(key, node.total, node.labels, node.speed, node.devices)
            )
            self._executors[key] = executor
            answer = step(self._state, executor.register(_AT)).answer
            if not isinstance(answer, RegistrationAnswer):
                raise InvariantBroken(f"node {node.name} could not register")
            executor.registered(answer, self._state.rm_epoch)
        self._settle(JobRegistered(_AT, _JOB, _JOB, "default", None, "", ""))

    def place(self, name: str, profile: ResourceProfile) -> tuple[str, list[int]] | None:
        """Places a request.

        Args:
            name: name of the request; no request that is placed now has this name.
            profile: resources that it needs.

        Returns:
            The node and the minors of its GPUs; None: the request does not fit now.
        """
        # Each try needs a new id, because an id always names the same request.
        self._tries += 1
        allocation_id = f"r{self._tries}"
        orders = self._settle(RequestsSubmitted(_AT, _JOB, (RequestSpec(allocation_id, profile),)))
        if not orders:
            # The request must not wait: if it should be tried again, the other program sends it
            # again.
            self._settle(SlotsReleased(_AT, _JOB, ((allocation_id, 0),)))
            return None
        self._ids[name] = allocation_id
        slot = orders[0].orders[0].slot
        devices = slot.assignment.devices if slot.assignment is not None else ()
        return self._names[slot.executor_id], [each.minor for each in devices if each.type == GPU]

    def release(self, name: str) -> None:
        """Releases the slot of a request."""
        self._settle(SlotsReleased(_AT, _JOB, ((self._ids.pop(name), 0),)))

    def _settle(self, event: Event) -> list[SendAllocate]:
        """Applies an event, decides, and lets the executors answer until nothing is left to do.
        Returns the commands that allocate slots.
        """
        state = self._state
        orders: list[SendAllocate] = []
        wire = list(step(state, event).effects)
        while True:
            wire += step(state, Decide(_AT)).effects
            state.changes.take()
            commands = [each for each in wire if isinstance(each, _COMMANDS)]
            if not commands and not state.unfinished:
                return orders
            wire = []
            for command in commands:
                if isinstance(command, SendAllocate):
                    orders.append(command)
                answer = self._executors[command.executor_id].carry_out(command, _AT)
                wire += step(state, answer).effects


_COMMANDS = (SendAllocate, SendFree, SendResize)


def serve(lines: Iterable[str], output: IO[str]) -> None:
    """Answers the messages of another program. Ends at the message `end`, or after the last
    line.

    Args:
        lines: lines that the program writes.
        output: stream for the answers; flushed after each answer.

    Raises:
        InvalidArgument: a line is not a message of this protocol.
    """
    placements: Placements | None = None
    held: set[int] = set()
    for number, line in enumerate(lines, 1):
        message = _Message(number, line)
        kind = message.text("type")
        if kind == "end":
            return
        if kind == "hello":
            placements, held = Placements(message.nodes()), set()
            answer: Mapping[str, object] = {"type": "ready", "name": "finegrain"}
        elif placements is None:
            raise message.wrong("type", kind, 'hello as the first line, with the "nodes"')
        elif kind == "request":
            name = message.whole("id")
            if name in held:
                raise message.wrong("id", name, "a number that no request has now")
            found = placements.place(str(name), message.profile())
            if found is not None:
                held.add(name)
            node, minors = found or (None, [])
            answer = {"id": name, "node": node, "gpus": minors}
        elif kind == "release":
            name = message.whole("id")
            if name not in held:
                raise message.wrong("id", name, "the number of a request that was placed")
            held.remove(name)
            placements.release(str(name))
            continue
        else:
            raise message.wrong("type", kind, "hello, request, release or end")
        output.write(json.dumps(answer) + "\n")
        output.flush()


class _Message:
    """A message of the other program, or a part of one."""

    def __init__(self, number: int, line: str, data: object = None, place: str = "") -> None:
        self._number = number
        self._place = place
        try:
            self._data: Any = json.loads(line) if data is None else data
        except ValueError:
            raise self.wrong("", line.strip()[:80], "one JSON object per line") from None
        if not isinstance(self._data, dict):
            raise self.wrong("", line.strip()[:80], "a JSON object")

    def wrong(self, field: str, value: object, expected: str) -> InvalidArgument:
        """Returns an error about a field of this line."""
        where = ", ".join(filter(None, (f"line {self._number}", self._place, field)))
        return InvalidArgument(where, value, expected)

    def text(self, field: str) -> str:
        """Returns a text."""
        value = self._data.get(field)
        if not isinstance(value, str):
            raise self.wrong(field, value, "a text")
        return value

    def whole(self, field: str) -> int:
        """Returns a field as a whole number, which must be at least 0; if the field is absent,
        returns 0.
        """
        value = self._data.get(field, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(field, value, "a whole number, at least 0")
        return value

    def nodes(self) -> list[Node]:
        """Returns the nodes that a hello lists."""
        if (parts := self.whole("gpu_milli_per_device")) != GPU_MILLI:
            raise self.wrong("gpu_milli_per_device", parts, str(GPU_MILLI))
        listed = self._data.get("nodes")
        if not isinstance(listed, list) or not listed:
            raise self.wrong("nodes", listed, "a list of nodes")
        nodes: dict[str, Node] = {}
        for at, each in enumerate(listed):
            one = _Message(self._number, "", each if each is not None else [], f"nodes[{at}]")
            name, model = one.text("id"), str(each.get("model") or "")
            if name in nodes:
                raise one.wrong("id", name, "an id that no other node has")
            total = {
                CPU_MILLI: one.whole("cpu_milli"),
                MEMORY_BYTES: one.whole("memory_mib") * MIB,
            }
            present = {dimension: amount for dimension, amount in total.items() if amount}
            nodes[name] = Node(name, present, devices=equal_gpus(one.whole("gpus"), model))
        return list(nodes.values())

    def profile(self) -> ResourceProfile:
        """Returns the resources that a request needs."""
        return ResourceProfile(
            self.whole("cpu_milli"),
            task_heap_memory_bytes=self.whole("memory_mib") * MIB,
            devices=self._gpus(),
        )

    def _gpus(self) -> tuple[DeviceRequest, ...]:
        models = self._data.get("gpu_spec") or []
        if not isinstance(models, list) or not all(isinstance(each, str) for each in models):
            raise self.wrong("gpu_spec", models, "a list of models")
        milli = self.whole("gpu_milli")
        if milli > GPU_MILLI:
            raise self.wrong("gpu_milli", milli, f"at most {GPU_MILLI}")
        return gpus(self.whole("num_gpu"), milli, models)
