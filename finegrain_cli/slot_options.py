"""Declares and decodes the options that describe a slot, which `run` and `batch` share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaPolicy, QosClass
from finegrain.errors import InvalidArgument
from finegrain.units import parse_bytes, parse_cpu_milli, parse_duration_ms, parse_pair
from finegrain.values.bounds import TASK_TIME_MS_MAX
from finegrain_cli import completing
from finegrain_cli.device_options import DeviceOptions

if TYPE_CHECKING:
    import finegrain_client as fg

CpuOption = Annotated[
    str, typer.Option("--cpu", metavar="CPU", help="CPU in cores, such as 2, 0.5 or 500m.")
]
MemoryOption = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory in bytes, such as 256M or 2G.")
]
CpuLimitOption = Annotated[
    str,
    typer.Option(
        "--cpu-limit", metavar="CPU", help="CPU limit in cores, if it is higher than --cpu."
    ),
]
PidsOption = Annotated[
    int,
    typer.Option(
        "--pids",
        metavar="N",
        min=0,
        help="Maximum number of processes in the slot; 0: the default of the executor.",
    ),
]
PortsOption = Annotated[
    int,
    typer.Option(
        "--ports",
        metavar="N",
        min=0,
        help="Number of network ports; FINEGRAIN_PORTS has the port numbers.",
    ),
]
ResourceOption = Annotated[
    list[str],
    typer.Option(
        "--resource",
        metavar="NAME=COUNT",
        help="Amount of a countable resource, such as license=1.",
    ),
]
GpuOption = Annotated[
    str,
    typer.Option(
        "--gpu", metavar="N", help="Number of GPUs, such as 2, or a part of one GPU, such as 0.5."
    ),
]
GpuCoreOption = Annotated[
    int,
    typer.Option(
        "--gpu-core",
        metavar="PERCENT",
        min=0,
        help="GPU compute, in percent of one GPU, such as 60.",
    ),
]
GpuMemoryOption = Annotated[
    str, typer.Option("--gpu-memory", metavar="SIZE", help="GPU memory in bytes, such as 4Gi.")
]
GpuMemoryRatioOption = Annotated[
    int,
    typer.Option(
        "--gpu-memory-ratio",
        metavar="PERCENT",
        min=0,
        help="GPU memory, in percent of one GPU, such as 60.",
    ),
]
GpuSharedOption = Annotated[
    int,
    typer.Option(
        "--gpu-shared",
        metavar="N",
        min=0,
        help="Number of GPUs over which --gpu-core, --gpu-memory and --gpu-memory-ratio are "
        "divided evenly.",
    ),
]
GpuModelOption = Annotated[
    str,
    typer.Option(
        "--gpu-model",
        metavar="WORDS",
        help="Words that the name of the GPU model must contain, such as H100.",
    ),
]
RdmaOption = Annotated[
    str,
    typer.Option(
        "--rdma",
        metavar="N",
        help="Number of RDMA NICs near the GPUs of the slot, such as 2, or a part of one NIC, "
        "such as 0.5.",
    ),
]
FpgaOption = Annotated[
    str, typer.Option("--fpga", metavar="N", help="Number of FPGAs, or a part of one FPGA.")
]
DeviceOption = Annotated[
    list[str],
    typer.Option(
        "--device", metavar="TYPE=N", help="Number of devices of another type, such as npu=1."
    ),
]
RequireIsolationOption = Annotated[
    list[str],
    typer.Option(
        "--require-isolation",
        metavar="NAME=LEVEL",
        help="Use only hosts that enforce this limit strictly enough, such as gpu-memory=watch. "
        "NAME: cpu, memory, gpu-core, gpu-memory or a device type. LEVEL: kernel, mps, watch or "
        "visible-only.",
    ),
]
RestartOnDeviceLossOption = Annotated[
    bool,
    typer.Option(
        "--restart-on-device-loss",
        help="If a device of the slot fails, run the command again in another slot.",
    ),
]
RevocableOption = Annotated[
    bool,
    typer.Option(
        "--revocable",
        help="Let the resource manager take the slot back for a request that is not revocable and "
        "fits on no executor, if revocation is on in the cluster.",
    ),
]
LabelOption = Annotated[
    list[str],
    typer.Option("--label", metavar="KEY=VALUE", help="Label that the executor must have."),
]
QosOption = Annotated[
    str,
    typer.Option(
        "--qos",
        metavar="LSE|LSR|LS|BE",
        autocompletion=completing.words(*QosClass),
        help="QoS class. LSE: dedicated cpus. LSR: dedicated cpus that best-effort slots may also "
        "use. LS (default): the shared pool. BE: best effort.",
    ),
]
CpuBindOption = Annotated[
    str,
    typer.Option(
        "--cpu-bind",
        metavar="POLICY[:STRENGTH]",
        autocompletion=completing.words(*BindPolicy),
        help="Cpus of the slot: whole cores (FullPCPUs), one thread per core (SpreadByPCPUs), or, "
        "for LS, the shared pool of one NUMA node (ConstrainedBurst). STRENGTH: required, or "
        "preferred (default).",
    ),
]
CpuExclusiveOption = Annotated[
    str,
    typer.Option(
        "--cpu-exclusive",
        metavar="POLICY[:STRENGTH]",
        autocompletion=completing.words(*ExclusivePolicy),
        help="Share no core (PCPULevel) or no NUMA node (NUMANodeLevel) with slots of the same "
        "policy. STRENGTH: required, or preferred (default).",
    ),
]
NumaOption = Annotated[
    str,
    typer.Option(
        "--numa",
        metavar="POLICY[:STRENGTH]",
        autocompletion=completing.words(*NumaPolicy),
        help="NUMA nodes of the slot: one (SingleNUMANode), as few as possible (Restricted), or "
        "aligned if possible (BestEffort). STRENGTH: required (default of SingleNUMANode and "
        "Restricted), or preferred.",
    ),
]
SlotLabelOption = Annotated[
    list[str],
    typer.Option(
        "--slot-label",
        metavar="KEY=VALUE",
        help="Label of the slot, for --near and --apart of other slots of the job. Repeatable.",
    ),
]
NearOption = Annotated[
    list[str],
    typer.Option(
        "--near",
        metavar="KEY=VALUE[,...][@LEVEL][:STRENGTH]",
        help="Place the slot near a slot of the same job with these labels. LEVEL: host (default), "
        "numa, l3 or core; below host only with --qos LSE or LSR. STRENGTH: required (default), or "
        "preferred. Repeatable.",
    ),
]
ApartOption = Annotated[
    list[str],
    typer.Option(
        "--apart",
        metavar="KEY=VALUE[,...][@LEVEL][:STRENGTH]",
        help="Place the slot apart from all slots of the same job with these labels. LEVEL and "
        "STRENGTH as for --near. Repeatable.",
    ),
]
EnvOption = Annotated[
    list[str],
    typer.Option(
        "--env",
        "-e",
        metavar="KEY[=VALUE]",
        help="Set an environment variable of the command; without =VALUE, copy yours.",
    ),
]
UserOption = Annotated[
    str,
    typer.Option(
        "--user",
        metavar="USER",
        help="User that runs the command on the host; default: the executor's task user.",
    ),
]
GroupOption = Annotated[
    str,
    typer.Option(
        "--group",
        metavar="GROUP",
        autocompletion=completing.groups,
        help="Resource group of the job; default: what the rules of groups choose, or else the "
        "group `default`.",
    ),
]
PriorityOption = Annotated[
    int,
    typer.Option(
        "--priority",
        metavar="N",
        help="Order of the job within its group, -100 to 100: the highest is served first. The "
        "share of the group stays the same.",
    ),
]
TimeLimitOption = Annotated[
    str,
    typer.Option(
        "--time-limit",
        metavar="DURATION",
        help="End the slot after this time, such as 2h, even if the resource manager is away; "
        "default: no limit.",
    ),
]
ExpectedRunTimeOption = Annotated[
    str,
    typer.Option(
        "--expected-run-time",
        metavar="DURATION",
        help="Time that the work in the slot will probably take, as a hint for the scheduler; "
        "default: --time-limit, or what earlier slots of the job took.",
    ),
]
JobLabelOption = Annotated[
    list[str],
    typer.Option(
        "--job-label",
        metavar="KEY=VALUE",
        help="Label of the job, which rules of groups can use (`finegrain groups rules`). "
        "Repeatable.",
    ),
]
AfterOption = Annotated[
    list[str],
    typer.Option(
        "--after",
        metavar="JOB[:ok|any|failed]",
        autocompletion=completing.jobs,
        help="Wait until this job has ended: successfully (ok, default), with any outcome (any), "
        "or with a failure (failed). If it ends in another way, this job ends, too. Repeatable.",
    ),
]
AllowPendingOption = Annotated[
    bool,
    typer.Option("--allow-pending", help="Wait even if no known executor could host the slot."),
]


def slot_spec(
    *,
    cpu: str = "",
    memory: str = "",
    cpu_limit: str = "",
    pids: int = 0,
    ports: int = 0,
    resources: list[str],
    labels: list[str],
    allow_pending: bool = False,
    restart_on_device_loss: bool = False,
    revocable: bool = False,
    qos: str = "",
    cpu_bind: str = "",
    cpu_exclusive: str = "",
    numa: str = "",
    slot_labels: Sequence[str] = (),
    near: Sequence[str] = (),
    apart: Sequence[str] = (),
    devices: DeviceOptions | None = None,
    require_isolation: Sequence[str] = (),
    time_limit: str = "",
    expected_run_time: str = "",
    wait_timeout: str = "",
) -> fg.SlotSpec:
    """Returns the slot that the options request. The arguments are texts as the user typed them.

    Raises:
        InvalidArgument: an option cannot be decoded.
    """
    import finegrain_client
    from finegrain.cpu_words import policy_text, read_policy, read_word
    from finegrain.neighbors import read_rule, rule_text

    def policy(option: str, text: str, kind: type[StrEnum]) -> str:
        return policy_text(*read_policy(option, text, kind)) if text else ""

    def rules(option: str, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(rule_text(read_rule(option, text, apart=False)) for text in texts)

    amounts = devices.amounts() if devices is not None else {}
    return finegrain_client.SlotSpec(
        cpu_milli=parse_cpu_milli("--cpu", cpu) if cpu else None,
        memory_bytes=parse_bytes("--memory", memory) if memory else None,
        cpu_limit_milli=parse_cpu_milli("--cpu-limit", cpu_limit) if cpu_limit else 0,
        pids_max=pids,
        ports=ports,
        extended={name: _count(name, text) for name, text in _pairs("--resource", resources)},
        devices=amounts,
        device_hints=devices.hints() if devices is not None else (),
        require_isolation=_levels(require_isolation, amounts),
        labels=dict(_pairs("--label", labels)),
        allow_pending=allow_pending,
        restart_on_device_loss=restart_on_device_loss,
        revocable=revocable,
        qos=read_word("--qos", qos, QosClass) if qos else QosClass.LS,
        cpu_bind=policy("--cpu-bind", cpu_bind, BindPolicy),
        cpu_exclusive=policy("--cpu-exclusive", cpu_exclusive, ExclusivePolicy),
        numa=policy("--numa", numa, NumaPolicy),
        slot_labels=dict(_pairs("--slot-label", list(slot_labels))),
        near=rules("--near", near),
        apart=rules("--apart", apart),
        time_limit_s=seconds("--time-limit", time_limit),
        expected_run_time_s=seconds("--expected-run-time", expected_run_time),
        wait_timeout_s=seconds("--wait-timeout", wait_timeout) or None,
    )


def _levels(texts: Sequence[str], amounts: Mapping[str, int]) -> dict[str, str]:
    """Returns the required levels of enforcement, by dimension.

    Raises:
        InvalidArgument: a level cannot be read, or its dimension is not requested.
    """
    if not texts:
        return {}
    from finegrain.devices.levels import check_required
    from finegrain.devices.names import device_requests

    types = [each.type for each in device_requests(amounts)]
    required = dict(_pairs("--require-isolation", texts))
    return dict(check_required(required, types, "--require-isolation"))


def seconds(option: str, text: str) -> float | None:
    """Returns a duration in seconds, or None if the option was not given.

    Raises:
        InvalidArgument: the text is not a duration.
    """
    return parse_duration_ms(option, text) / 1000 if text else None


def task_seconds(option: str, text: str) -> float | None:
    """Returns the time limit of a task in seconds, or None if the option was not given.

    Raises:
        InvalidArgument: the text is not a duration, or the duration is not allowed.
    """
    if not text:
        return None
    time_ms = parse_duration_ms(option, text)
    if not 1 <= time_ms <= TASK_TIME_MS_MAX:
        raise InvalidArgument(option, text, f"1ms to {TASK_TIME_MS_MAX // 86_400_000}d")
    return time_ms / 1000


def _pairs(option: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [parse_pair(option, text) for text in texts]


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise InvalidArgument(f"--resource {name}", text, "a whole number")
    return int(text)
