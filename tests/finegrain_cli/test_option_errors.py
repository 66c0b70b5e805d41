"""Tests of errors about fields of the API, which the command shows as errors about options."""

from __future__ import annotations

import pytest

from finegrain.errors import FailedPrecondition, FinegrainError, InvalidArgument, Reason
from finegrain_cli.common import hint_for
from finegrain_cli.device_options import DeviceOptions
from finegrain_cli.option_errors import name_options
from resource_manager.engine.lifecycle.waiting import TO_WAIT


@pytest.mark.parametrize(
    ("field", "value", "expected", "typed", "told"),
    [
        (
            "requests[0].cpu_limit_milli",
            1_000,
            "0, or cpu_milli (2000) to 8000",
            {"cpu": "2", "cpu_limit": "1000m"},
            "--cpu-limit is '1000m'; expected 0, or --cpu (2) to 8",
        ),
        (
            "requests[0].profile.extended key",
            "A b",
            "a name",
            {"resource": ["A b=1"]},
            "--resource key is 'A b'; expected a name",
        ),
        (
            "spec.env[CUDA_VISIBLE_DEVICES]",
            "0",
            "nothing",
            {"env": ["CUDA_VISIBLE_DEVICES=0"]},
            "--env CUDA_VISIBLE_DEVICES is '0'; expected nothing",
        ),
        ("requests[0].pids_max", 9, "0 to 8", {"pids": 9}, "--pids is '9'; expected 0 to 8"),
        (
            "pids_max",
            9,
            "0 to 8 (half a core is cpu_milli=500)",
            {"pids": 9},
            "--pids is '9'; expected 0 to 8",
        ),
        (
            "spec.cwd",
            "here",
            "an absolute path",
            {"cwd": "here"},
            "--cwd is 'here'; expected an absolute path",
        ),
        (
            "cpu_milli",
            500,
            "whole cpus with qos LSE; or cpu_policy.qos LS for a group of parts",
            {"cpu": "0.5"},
            "--cpu is '0.5'; expected whole cpus with qos LSE; or --qos LS for a group of parts",
        ),
        ("allocation_ids[0]", "x", "an id", {"request": "x"}, "ID is 'x'; expected an id"),
        ("requests[0].pids_max", 9, "0 to 8", {}, "requests[0].pids_max is 9; expected 0 to 8"),
    ],
    ids=[
        "cpu limit",
        "one of several",
        "variable",
        "number",
        "unit of programs",
        "directory",
        "policy",
        "id",
        "not an option",
    ],
)
def test_the_option_and_the_value_as_typed_are_named(
    field: str, value: object, expected: str, typed: dict[str, object], told: str
) -> None:
    error = InvalidArgument(field, value, expected)
    name_options(error, typed)
    assert error.message == told


def test_the_error_of_a_rejected_request_is_reworded_as_well() -> None:
    text = "slot request 01 was rejected: memory_bytes is 1; expected at least 4194304, or no"
    text += " profile at all for a default slot"
    error = FinegrainError(text, reason=Reason.INVALID_ARGUMENT)
    name_options(error, {"memory": "1"})
    told = "slot request 01 was rejected: --memory is '1'; expected at least 4Mi"
    assert error.message == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            DeviceOptions(gpu_core=30, gpu_shared=4, gpu_memory_ratio=50),
            (
                "--gpu-core is '30'; expected a multiple of --gpu-shared (4), at most 100 for each"
                " GPU; the nearest is 32"
            ),
        ),
        (DeviceOptions(gpu="3000"), "--gpu is '3000'; expected at most 1024 devices"),
        (
            DeviceOptions(gpu="2", gpu_core=60),
            (
                "--gpu, --gpu-core is '--gpu 2, --gpu-core 60'; expected --gpu alone, or"
                " --gpu-core, --gpu-memory, --gpu-memory-ratio, or --gpu-core with one of the other"
                " two; --gpu-shared may be added to a request with memory"
            ),
        ),
    ],
    ids=["hint", "unit", "several"],
)
def test_options_of_devices_are_named_as_typed(options: DeviceOptions, told: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        options.amounts()
    assert raised.value.message.replace('"', "'").replace("''", "'") == told


def test_a_rule_about_neighbors_is_named_as_typed() -> None:
    typed = {"near": ["app=db"], "apart": ["app=a", "app=b@core"]}
    error = InvalidArgument("requests[0].cpu_policy.neighbors[2].level", "core", "level host")
    name_options(error, typed)
    assert error.message == "--apart is 'app=b@core'; expected level host"


REFUSED = (
    "no executor could host 64 cpu, 256Mi memory, even when empty (cpu: requested 64, largest "
    "executor 2)"
)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ({"cpu": "64"}, "request less; `finegrain executors` lists"),
        ({"numa": "Restricted"}, "request less, or leave out --numa; `finegrain"),
        ({"qos": "LSR", "label": ["a=b"]}, "request less, or leave out --qos or --label; "),
        ({"require_isolation": ["memory=kernel"]}, "request less, or leave out --require-isol"),
        ({"allow_pending": False}, "request less; --allow-pending waits for another executor; "),
    ],
    ids=str,
)
def test_a_refusal_has_hints_about_typed_options_alone(typed: dict[str, object], hint: str) -> None:
    error = FailedPrecondition(f"{REFUSED}{TO_WAIT}", reason=Reason.INFEASIBLE_NEVER)

    name_options(error, typed)

    assert error.message == REFUSED
    assert hint_for(error, typed).startswith(hint)
    assert "providers" not in hint_for(error, typed)
