"""Defines the parts of a job graph: operators with their resources, edges, and options of the job.

All values are immutable. Their constructors check each value, and the compiler checks whether the
parts fit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from finegrain.cpu_words import read_word
from finegrain.errors import InvalidArgument
from finegrain.resources import KIB, extended_items
from finegrain.texts import check_id, check_text
from finegrain.values.bounds import AMOUNT_MAX
from finegrain_client.run_times import check_run_times

WordT = TypeVar("WordT", bound=StrEnum)

PARALLELISM_MAX = 100_000
PORTS_MAX = 1_000
WEIGHT_MAX = 1_000_000
RESTARTS_MAX = 1_000_000
DELAY_MAX_S = 86_400


class JobMode(StrEnum):
    """The way in which the tasks of a job end. Tasks of a batch job end by themselves. Tasks of a
    streaming job end only when a user ends the job.
    """

    STREAMING = "streaming"
    BATCH = "batch"


class Exchange(StrEnum):
    """The time at which the consumer of an edge runs."""

    # the consumer runs at the same time as the producer, and reads directly from the producer
    PIPELINED = "pipelined"
    BLOCKING = "blocking"  # the consumer runs after all tasks of the producer's region have ended


class Pattern(StrEnum):
    """Which subtasks of an edge's two operators are connected."""

    # subtasks with equal indexes, or with the nearest indexes if the parallelism differs
    FORWARD = "forward"
    ALL_TO_ALL = "all-to-all"


class Output(StrEnum):
    """The place where an operator stores its output for blocking edges."""

    HOST = "host"  # on the host of each task; the output is lost with the host
    DURABLE = "durable"  # in a store that does not depend on any host


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSpec:
    """The resources of one subtask of an operator. CPU and task heap memory are required.

    Network memory is not included, because the compiler derives it from the edges.

    Attributes:
        cpu_milli: CPU in thousandths of a core; required.
        task_heap_memory_bytes: memory for the operator's own objects; required.
        task_off_heap_memory_bytes: off-heap memory of the operator.
        managed_memory_bytes: managed memory, on-heap and off-heap together.
        managed_on_heap_memory_bytes: the part of `managed_memory_bytes` that is on the heap.
        extended: countable resources by name.
        devices: devices by name of the resource, in hundredths of a device, as in `SlotSpec`.
    """

    cpu_milli: int | None = None
    task_heap_memory_bytes: int | None = None
    task_off_heap_memory_bytes: int = 0
    managed_memory_bytes: int = 0
    managed_on_heap_memory_bytes: int = 0
    extended: Mapping[str, int] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)

    @property
    def managed_off_heap_memory_bytes(self) -> int:
        """The part of the managed memory that is not on the heap."""
        return self.managed_memory_bytes - self.managed_on_heap_memory_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """One operator of a job graph.

    Attributes:
        name: name of the operator, unique within the graph.
        parallelism: number of subtasks.
        resources: resources of one subtask. None means that they are unknown, and that the job uses
            default slots.
        program: program and arguments of its tasks; an empty value means the job's program.
        slot_sharing_group: group of operators that share slots; an empty value means the default of
            the job.
        co_location_group: subtasks with the same index of all operators in this group share a slot;
            empty if the operator is in no such group.
        chaining: if false, the operator is never in one task with another operator.
        uses_managed_memory: True if an operator without `resources` uses off-heap managed memory.
        uses_managed_on_heap_memory: True if an operator without `resources` uses on-heap managed
            memory.
        managed_memory_weight: share of the managed memory relative to the other operators without
            `resources` in the group.
        ports: number of network ports that each task gets.
        output: the place where the operator stores its output for blocking edges.
        revocable: if true, the resource manager may take the operator's slots back, as with
            `SlotSpec.revocable`; None means the job's value. All operators of a slot sharing group
            and of a pipelined region must have the same value.
    """

    name: str
    parallelism: int = 1
    resources: ResourceSpec | None = None
    program: Sequence[str] = ()
    slot_sharing_group: str = ""
    co_location_group: str = ""
    chaining: bool = True
    uses_managed_memory: bool = False
    uses_managed_on_heap_memory: bool = False
    managed_memory_weight: int = 1
    ports: int = 0
    output: Output = Output.HOST
    revocable: bool | None = None

    def __post_init__(self) -> None:
        check_id("operator name", self.name)
        object.__setattr__(self, "program", read_program(self._field("program"), self.program))
        object.__setattr__(self, "output", word(self._field("output"), self.output, Output))
        check_whole(self._field("parallelism"), self.parallelism, 1, PARALLELISM_MAX)
        check_whole(self._field("ports"), self.ports, 0, PORTS_MAX)
        for name in ("slot_sharing_group", "co_location_group"):
            if getattr(self, name):
                check_id(self._field(name), getattr(self, name))
        for name in ("chaining", "uses_managed_memory", "uses_managed_on_heap_memory"):
            check_flag(self._field(name), getattr(self, name))
        if self.revocable is not None:
            check_flag(self._field("revocable"), self.revocable)
        weight = self._field("managed_memory_weight")
        check_whole(weight, self.managed_memory_weight, 1, WEIGHT_MAX)
        if not isinstance(self.resources, ResourceSpec | None):
            raise InvalidArgument(self._field("resources"), self.resources, "a ResourceSpec")
        if self.resources is not None:
            self._check_resources(self.resources)
        elif self.managed_memory_weight != 1 and not self._uses_any:
            expected = "1, or uses_managed_memory = true for this operator"
            raise InvalidArgument(weight, self.managed_memory_weight, expected)

    @property
    def _uses_any(self) -> bool:
        return self.uses_managed_memory or self.uses_managed_on_heap_memory

    def _field(self, name: str) -> str:
        return f"{name} of operator {self.name}"

    def _check_resources(self, spec: ResourceSpec) -> None:
        for name in ("cpu_milli", "task_heap_memory_bytes"):
            value = getattr(spec, name)
            if value is None:
                expected = "an amount above 0: an operator with resources needs CPU and task heap"
                raise InvalidArgument(self._field(name), "missing", expected)
            check_whole(self._field(name), value, 1, AMOUNT_MAX)
        for name in ("task_off_heap_memory_bytes", "managed_memory_bytes"):
            check_whole(self._field(name), getattr(spec, name), 0, AMOUNT_MAX)
        check_whole(
            self._field("managed_on_heap_memory_bytes"),
            spec.managed_on_heap_memory_bytes,
            0,
            spec.managed_memory_bytes,
        )
        for kind, amounts in ("extended", spec.extended), ("devices", spec.devices):
            for name, amount in amounts.items():
                check_whole(self._field(f"{kind}.{name}"), amount, 0, AMOUNT_MAX)
        for name in spec.devices:
            # Reject a number of shared devices, because the sum of the numbers of two operators has
            # no meaning.
            if name.endswith(".shared"):
                expected = "no number of devices to share: give amounts such as gpu = 0.5"
                raise InvalidArgument(self._field(f"devices.{name}"), spec.devices[name], expected)
        if self._uses_any or self.managed_memory_weight != 1:
            raise InvalidArgument(
                self._field("uses_managed_memory and managed_memory_weight"),
                "set",
                "neither for an operator with resources: its managed_memory says how much it uses",
            )


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """A connection between two operators."""

    producer: str
    consumer: str
    exchange: Exchange = Exchange.PIPELINED
    pattern: Pattern = Pattern.FORWARD

    def __post_init__(self) -> None:
        exchange = word(f"exchange of edge {self.name}", self.exchange, Exchange)
        object.__setattr__(self, "exchange", exchange)
        object.__setattr__(
            self, "pattern", word(f"pattern of edge {self.name}", self.pattern, Pattern)
        )

    @property
    def name(self) -> str:
        """The edge as people write it: "source -> map"."""
        return f"{self.producer} -> {self.consumer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of a whole job.

    Attributes:
        all_vertices_in_same_slot_sharing_group_by_default: if true, operators without a
            `slot_sharing_group` share one group. If false, each pipelined region has a separate
            group. None means true for streaming jobs and false for batch jobs.
        chaining: if false, each operator has separate tasks.
        program: program and arguments for operators without a program.
        network_buffer_bytes: size of one network buffer.
        network_buffers_per_channel: buffers for each input channel of a task.
        network_floating_buffers_per_gate: further buffers for each input edge of a task.
        default_managed_memory_percent: percentage of a default slot that is managed memory. The
            percentage applies if an operator without resources uses managed memory in the slot.
        default_managed_on_heap_memory_percent: percentage of this managed memory that is on the
            heap. None means that the value depends on the managed memory that the operators of the
            group use. The value is 100 if they use only on-heap memory, 0 if they use only off-heap
            memory, and 50 if they use on-heap and off-heap memory.
        restarts_max: maximum number of restarts of one region after failures of its tasks.
        restart_delay_s: delay before the first restart. The delay doubles with each further
            restart, up to 60 s.
        time_limit_s: longest time of each slot of the job in seconds, from the start of the slot
            on; None means no limit. After this time, the executor ends the slot, and the region of
            the slot restarts.
        expected_run_time_s: probable time of each slot in seconds, at most `time_limit_s`. This is
            a hint for the scheduler. None means that the time is not known.
        revocable: if true, the resource manager may take slots of the job back, as with
            `SlotSpec.revocable`. The region of the slot then runs again. Operators can have another
            value.
    """

    all_vertices_in_same_slot_sharing_group_by_default: bool | None = None
    chaining: bool = True
    program: Sequence[str] = ()
    network_buffer_bytes: int = 32 * KIB
    network_buffers_per_channel: int = 2
    network_floating_buffers_per_gate: int = 8
    default_managed_memory_percent: int = 40
    default_managed_on_heap_memory_percent: int | None = None
    restarts_max: int = 3
    restart_delay_s: float = 1.0
    time_limit_s: float | None = None
    expected_run_time_s: float | None = None
    revocable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "program", read_program("program", self.program))
        name = "all_vertices_in_same_slot_sharing_group_by_default"
        if (same := self.all_vertices_in_same_slot_sharing_group_by_default) is not None:
            check_flag(name, same)
        check_flag("chaining", self.chaining)
        check_flag("revocable", self.revocable)
        check_whole("network_buffer_bytes", self.network_buffer_bytes, 1, 1024**3)
        for name in ("network_buffers_per_channel", "network_floating_buffers_per_gate"):
            check_whole(name, getattr(self, name), 0, 1_000_000)
        for name in ("default_managed_memory_percent", "default_managed_on_heap_memory_percent"):
            if (percent := getattr(self, name)) is not None:
                check_whole(name, percent, 0, 100)
        check_whole("restarts_max", self.restarts_max, 0, RESTARTS_MAX)
        delay = self.restart_delay_s
        # Compare the type: `isinstance` would accept True as an int.
        if type(delay) not in (int, float) or not 0 <= delay <= DELAY_MAX_S:
            raise InvalidArgument("restart_delay_s", delay, f"0 to {DELAY_MAX_S} seconds")
        check_run_times(self.time_limit_s, self.expected_run_time_s)


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A whole job graph, which is the input of the compiler. Operators and edges are in the order
    in which they were added.
    """

    name: str
    mode: JobMode
    operators: tuple[OperatorSpec, ...]
    edges: tuple[EdgeSpec, ...]
    options: JobOptions

    def __post_init__(self) -> None:
        check_text("name", self.name, longest=200)
        object.__setattr__(self, "mode", word("mode", self.mode, JobMode))


def summed(amounts: Iterable[Mapping[str, int]]) -> tuple[tuple[str, int], ...]:
    """Returns the sum for each name, sorted by name."""
    total: dict[str, int] = {}
    for each in amounts:
        for name, amount in each.items():
            total[name] = total.get(name, 0) + amount
    return extended_items(total)


def word(field_name: str, value: object, kind: type[WordT]) -> WordT:
    """Returns the member of the enum `kind`. `value` is the member or its text."""
    if not isinstance(value, str):
        raise InvalidArgument(field_name, value, "one of " + ", ".join(kind))
    return read_word(field_name, value, kind)


def read_program(field_name: str, value: object) -> tuple[str, ...]:
    """Returns a program and its arguments as a tuple.

    Raises:
        InvalidArgument: `value` is a single text, or not a list of texts.
    """
    expected = 'a list of texts, such as ["./count", "--verbose"]'
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgument(field_name, value, expected)
    program = tuple(value)
    if not all(isinstance(each, str) for each in program) or (program and not program[0]):
        raise InvalidArgument(field_name, list(program), expected)
    return program


def check_flag(field_name: str, value: object) -> None:
    """Raises InvalidArgument if the value is not true or false."""
    if not isinstance(value, bool):
        raise InvalidArgument(field_name, value, "true or false")


def check_whole(field_name: str, value: object, least: int, most: int) -> None:
    """Raises InvalidArgument if the value is not an integer from `least` to `most`."""
    # Compare the type: `isinstance` would accept True as an int.
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(field_name, value, f"an integer from {least} to {most}")
