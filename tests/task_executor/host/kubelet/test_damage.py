"""A file is missing, half-written or from another program: the executor notes it and keeps the last
known state.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpuset import EMPTY, CpuSet
from finegrain.topology import HostTopology
from task_executor.host.kubelet import KubeletTexts, read_kubelet
from task_executor.host.kubelet.checkpoints import (
    Damaged,
    parse_cpu_checkpoint,
    parse_memory_checkpoint,
)
from task_executor.host.kubelet.configuration import read_configuration
from task_executor.host.kubelet.parsing import packed
from task_executor.host.kubelet.quantities import cpu_milli, size_bytes
from tests.task_executor.host.kubelet.conftest import kubelet

STATE = "cpu_manager_state"
PINNED = CpuSet.parse("4-5,12-13")

DAMAGED = [
    "",
    "{",
    "[]",
    "null",
    '"static"',
    "{}",
    '{"policyName":"static","defaultCpuSet":"0-1","entr',
    '{"policyName":["static"],"defaultCpuSet":""}',
    '{"policyName":"static","defaultCpuSet":7}',
    '{"policyName":"static","defaultCpuSet":"0-"}',
    '{"policyName":"static","defaultCpuSet":"0-99999999999"}',
    '{"policyName":"static","defaultCpuSet":"","entries":[]}',
    '{"policyName":"static","defaultCpuSet":"","entries":{"a":7}}',
    '{"policyName":"static","defaultCpuSet":"","entries":{"a":{"b":"x"}}}',
    '{"policyName":"static","defaultCpuSet":"","podEntries":{"a":"1"}}',
    '{"policyName":"static","defaultCpuSet":"","data":"{"}',
    "[" * 100_000,
    "\x00\x01\x02",
]


def with_state(text: str | None, failure: str = "") -> KubeletTexts:
    found = kubelet("v1.23")
    texts = {name: each for name, each in found.texts.items() if name != STATE}
    failures = {STATE: failure} if failure else {}
    return replace(found, texts=texts | ({} if text is None else {STATE: text}), failures=failures)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_state_leaves_what_was_known(text: str, host: HostTopology) -> None:
    good = read_kubelet(kubelet("v1.23"), host)
    now = read_kubelet(with_state(text), host, good)
    assert now.state.pinned_cpus == PINNED
    assert len(now.state.notes) == 1
    assert "its last content is used" in now.state.notes[0]
    again = read_kubelet(kubelet("v1.23"), host, now)
    assert again.state == good.state


@pytest.mark.parametrize("text", DAMAGED)
def test_a_state_that_was_never_good_says_that_nothing_is_known(
    text: str, host: HostTopology
) -> None:
    now = read_kubelet(with_state(text), host)
    assert now.state.pinned_cpus == EMPTY
    assert "are unknown" in now.state.notes[0]


def test_a_state_that_may_not_be_read_is_told_with_its_reason(host: HostTopology) -> None:
    good = read_kubelet(kubelet("v1.23"), host)
    denied = with_state(None, "/var/lib/kubelet/cpu_manager_state: Permission denied")
    assert read_kubelet(denied, host, good).state.pinned_cpus == PINNED
    (note,) = read_kubelet(denied, host).state.notes
    assert "Permission denied" in note


def test_a_state_that_has_gone_stays_as_it_was(host: HostTopology) -> None:
    """Some services remove the state at each start of their kubelet, while pods run."""
    good = read_kubelet(kubelet("v1.23"), host)
    gone = read_kubelet(with_state(None), host, good)
    assert gone.state.pinned_cpus == PINNED
    assert "no longer exists" in gone.state.notes[0]
    emptied = '{"policyName":"static","defaultCpuSet":"0-15","checksum":1}'
    assert read_kubelet(with_state(emptied), host, gone).state.pinned_cpus == EMPTY


def test_a_kubelet_without_a_state_is_not_strange(host: HostTopology) -> None:
    """The kubelet has not started yet, or it is too old to have a state."""
    config = KubeletTexts({"config": "kind: KubeletConfiguration\n"})
    assert read_kubelet(config, host).state.notes == ()


def test_static_without_anything_reserved_is_told(host: HostTopology) -> None:
    state = read_kubelet(KubeletTexts({STATE: kubelet("v1.23").texts[STATE]}), host).state
    assert state.cpu_manager_policy == "static"
    assert state.pinned_cpus == PINNED
    (note,) = state.notes
    assert "its reserved cpus, without which it does not start, are unknown" in note


def test_a_state_of_another_policy_than_configured_is_told(host: HostTopology) -> None:
    text = '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    state = read_kubelet(with_state(text), host).state
    assert "configured for cpu manager policy static" in state.notes[0]


def test_what_does_not_fit_the_host_is_told_and_believed(host: HostTopology) -> None:
    text = json.dumps(
        {"policyName": "static", "defaultCpuSet": "2-3", "entries": {"p": {"c": "0,99"}}}
    )
    state = read_kubelet(with_state(text), host).state
    assert state.pinned_cpus == CpuSet.of(0, 99)
    assert any(
        "has assigned cpus 99, which this host does not have" in note for note in state.notes
    )
    assert any("has assigned cpus 0, which it also reserves" in note for note in state.notes)


def test_a_damaged_memory_state_leaves_cpus_alone(host: HostTopology) -> None:
    good = read_kubelet(kubelet("v1.23"), host)
    texts = dict(kubelet("v1.23").texts) | {"memory_manager_state": "{"}
    now = read_kubelet(KubeletTexts(texts), host, good)
    assert now.state.containers == good.state.containers
    assert "memory_manager_state is damaged" in now.state.notes[0]


def test_memory_of_a_pod_as_a_whole_is_counted_once(host: HostTopology) -> None:
    block = {"numaAffinity": [0], "type": "memory", "size": 1 << 30}
    text = json.dumps(
        {
            "policyName": "Static",
            "machineState": {},
            "entries": {"p": {"c": [block]}, "q": {"c": [block]}},
            "podEntries": {"p": {"memoryBlocks": [block]}},
        }
    )
    state = read_kubelet(KubeletTexts({"memory_manager_state": text}), host).state
    found = {(each.pod_uid, each.container): each.memory_bytes for each in state.containers}
    assert found == {("p", ""): ((0, 1 << 30),), ("q", "c"): ((0, 1 << 30),)}


# -- configuration -----------------------------------------------------------------------------


def bomb(level: str) -> str:
    """Returns a few lines that expand to more than fits in any memory."""
    lines = ["a0: &a0 {k: v}"]
    for at in range(1, 30):
        many = ", ".join([f"*a{at - 1}"] * 10)
        lines.append(f"a{at}: &a{at} {level.format(many)}")
    return "\n".join([*lines, "cpuManagerPolicy: *a29"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod\n", "is not a KubeletConfiguration"),
        ("- a\n- b\n", "is not a KubeletConfiguration"),
        ("a: [", "it is not YAML"),
        ("a: !!python/object/apply:os.system [true]", "it is not YAML"),
        ("cpuManagerPolicy: 7", "not a string"),
        ("cpuManagerPolicyOptions: full", "not a map"),
        ("reservedSystemCPUs: one", "not a cpu list"),
        ("kubeReserved: {cpu: lots}", "not an amount"),
        ("reservedMemory: [{numaNode: x}]", "malformed"),
        ("reservedMemory: 7", "malformed"),
        ("[" * 10_000, "cannot be read"),
        ("a: !!bool x", "it is not YAML"),
        ("a: !!timestamp x", "it is not YAML"),
        ("a: !!int ''", "it is not YAML"),
        pytest.param(f"cpuManagerPolicy: 0x{'f' * 9_000}", "it is not YAML", id="a huge number"),
        pytest.param(bomb("[{}]"), "it has aliases", id="a billion words"),
        pytest.param(bomb("{{<<: [{}]}}"), "it has aliases", id="a billion keys"),
    ],
)
def test_strange_configuration_leaves_a_note(text: str, said: str) -> None:
    found = read_configuration([("config", text)], [])
    assert any(said in note for note in found.notes)
    assert replace(found, notes=()) == read_configuration([], [])


def test_values_that_yaml_has_read_already_are_understood() -> None:
    text = "reservedSystemCPUs: 0\ncpuManagerPolicyOptions: {full-pcpus-only: true}\n"
    found = read_configuration([("config", text)], [])
    assert found.reserved_cpus == CpuSet.of(0)
    assert found.cpu_manager_options == (("full-pcpus-only", "true"),)
    amounts = read_configuration([("config", "kubeReserved: {cpu: 1.5}\n")], [])
    assert amounts.reserved_cpu_milli == 1500


def test_reserved_memory_by_flag() -> None:
    flag = "--reserved-memory=0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=512Mi"
    assert read_configuration([], [flag]).reserved_memory == (
        (0, "hugepages-1Gi", 2 << 30),
        (0, "memory", 1 << 30),
        (1, "memory", 512 << 20),
    )


def test_a_flag_without_its_value_is_nothing() -> None:
    assert read_configuration([], ["--cpu-manager-policy"]).cpu_manager_policy is None


@pytest.mark.parametrize(
    ("text", "milli", "size"),
    [
        ("500m", 500, 1),
        ("2", 2000, 2),
        ("1.5", 1500, 2),
        ("1e3", 1_000_000, 1000),
        ("1Ki", 1_024_000, 1024),
        ("3M", 3 * 10**9, 3 * 10**6),
        ("100u", 1, 1),
        ("", None, None),
        ("-1", None, None),
        ("1 Gi", None, None),
        ("1e99", 10**102, 10**99),
        ("1e999", None, None),
    ],
)
def test_quantities(text: str, milli: int | None, size: int | None) -> None:
    assert (cpu_milli(text), size_bytes(text)) == (milli, size)


# -- for any text ------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["policyName", "entries", "podEntries", "machineState", "data", "0", "memoryMap"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_file_brings_the_reader_down(content: object) -> None:
    text = json.dumps(content)
    for parse in (parse_cpu_checkpoint, parse_memory_checkpoint):
        with contextlib.suppress(Damaged):
            parse(text)
    read_configuration([("config", text)], [])


@given(st.text(max_size=60))
def test_no_text_brings_the_configuration_down(text: str) -> None:
    read_configuration([("config", text)], [text, f"--reserved-memory={text}"])


@given(st.integers(0, 20))
def test_reserved_amounts_are_exact_and_whole_cores(count: int) -> None:
    host = _host()
    taken = packed(count, host)
    assert len(taken) == min(count, 16)
    broken = [core for core in host.cores if core.cpus & taken and not core.cpus <= taken]
    assert len(broken) == (count % 2 if count < 16 else 0)


def _host() -> HostTopology:
    from finegrain.topology import Core, Package

    return HostTopology(
        online=CpuSet.parse("0-15"),
        allowed=CpuSet.parse("0-15"),
        cores=tuple(Core(CpuSet.of(cpu, cpu + 8), package=cpu // 4) for cpu in range(8)),
        numa_nodes=(),
        packages=(Package(CpuSet.parse("0-3,8-11"), 0), Package(CpuSet.parse("4-7,12-15"), 1)),
    )
