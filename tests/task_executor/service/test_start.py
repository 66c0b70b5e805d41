"""What an executor decides at its start: its capacity and the user of tasks; and what prevents a
start.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.cpuset import CpuSet
from finegrain.errors import ConfigurationError, FinegrainError, InvalidArgument, PermissionDenied
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.topology import Core, HostTopology, HugePages, Limits, NumaNode
from finegrain.v1 import cpus_pb2
from task_executor.engine.cpu_ledger import CpuLedger
from task_executor.engine.slots import SlotSpec
from task_executor.host.capacity import CapacityOptions, plan_capacity
from task_executor.host.detection import detect
from task_executor.host.helper_messages import IsolationReport
from task_executor.host.kubelet import KubeletState
from task_executor.options import TaskExecutorOptions
from task_executor.service.encoding import host_cpus_to_proto
from task_executor.service.host_cpus import host_cpus
from task_executor.service.host_plan import HostPlan, beside_kubelet, plan_host
from task_executor.service.isolation import isolation_of, notes_of
from task_executor.service.prepared import prepare
from task_executor.service.task_users import User, UserPolicy, user_policy
from tests.support.components import REPOSITORY
from tests.task_executor.service.fake_helper import ENFORCED

BE_CPU = "best_effort_cpu_milli"

OPTIONS = TaskExecutorOptions(
    Path("state"), Path("run"), ("127.0.0.1:1",), memory_bytes=GIB, task_ports="none"
)


def options(**changes: Any) -> TaskExecutorOptions:
    return dataclasses.replace(OPTIONS, **changes)


@pytest.fixture(scope="module")
def host() -> HostTopology:
    return detect(Path("/"))


def plan(host: HostTopology, **changes: Any) -> HostPlan:
    return plan_host(options(**changes), host)


def test_a_share_is_offered_as_it_is(host: HostTopology) -> None:
    first = str(host.allowed.first(1))
    made = plan(host, cpus=first, cpu_milli=700, extended=(("license-x", 2),))
    assert made.share.total == {
        "cpu_milli": 700,
        "best_effort_cpu_milli": 700,
        "memory_bytes": GIB,
        "extended.license-x": 2,
    }
    assert str(made.share.shared_cpus) == first
    assert made.reserved == {}


def test_the_default_slot_is_a_fraction_of_the_total(host: HostTopology) -> None:
    made = plan(host, default_slot_fraction=0.1)
    assert made.default_profile.memory_bytes == GIB // 10 // 65536 * 65536
    assert made.default_profile.cpu_milli == made.share.total["cpu_milli"] // 10


def test_the_number_of_slots_still_works_and_says_what_to_use(host: HostTopology) -> None:
    made = plan(host, number_of_slots=4)
    assert made.default_profile.memory_bytes == GIB // 4
    assert any("default_slot_fraction" in warning for warning in made.warnings)


@pytest.mark.parametrize(
    ("percent", "managed_bytes"), [(None, 107_347_968), (0, 0), (100, 256 * MIB), (50, 128 * MIB)]
)
def test_a_part_of_the_default_slot_is_managed_memory(
    host: HostTopology, percent: int | None, managed_bytes: int
) -> None:
    """The default is 40 %, rounded down to 64 KiB."""
    changes = {} if percent is None else {"default_slot_managed_percent": percent}
    made = plan(host, number_of_slots=4, **changes).default_profile
    assert made.memory_bytes == 256 * MIB
    assert made.managed_memory_bytes == managed_bytes


def test_a_default_slot_may_be_given_whole(host: HostTopology) -> None:
    made = plan(
        host,
        default_slot_cpu_milli=700,
        default_slot_memory_bytes=128 * MIB,
        default_slot_memory_percent=(("managed", 25), ("network", 50)),
    ).default_profile
    assert (made.cpu_milli, made.memory_bytes) == (700, 128 * MIB)
    assert (made.task_heap_memory_bytes, made.managed_memory_bytes) == (32 * MIB, 32 * MIB)
    assert made.network_memory_bytes == 64 * MIB


def test_pools_apart_make_a_default_slot_of_each_part(host: HostTopology) -> None:
    pools = (("task_heap_memory_bytes", 512 * MIB), ("managed_memory_bytes", 256 * MIB))
    made = plan(host, memory_pools=pools, default_slot_fraction=0.5)
    assert "memory_bytes" not in made.share.total
    assert made.default_profile.task_heap_memory_bytes == 256 * MIB
    assert made.default_profile.managed_memory_bytes == 128 * MIB


def with_hugepages(host: HostTopology, *pages: HugePages) -> HostTopology:
    first = dataclasses.replace(host.numa_nodes[0], hugepages=pages)
    return dataclasses.replace(host, numa_nodes=(first, *host.numa_nodes[1:]))


PAGES = HugePages(2 * MIB, 100)


def test_huge_pages_are_offered_by_size_unless_the_operator_counts_them(host: HostTopology) -> None:
    made = plan(with_hugepages(host, PAGES))
    assert made.share.total["extended.hugepages-2Mi"] == 100
    assert made.offers_hugepages
    counted = plan(with_hugepages(host, PAGES), extended=(("hugepages-2Mi", 7),))
    assert counted.share.total["extended.hugepages-2Mi"] == 7
    assert not plan(with_hugepages(host)).offers_hugepages


def test_countable_resources_may_lie_on_numa_nodes(host: HostTopology) -> None:
    first, *others = (node.id for node in host.numa_nodes)
    name = "example.com/queue"
    made = plan(host, extended=((f"{name}@{first}", 3), ("license", 2)))
    assert made.share.total[f"extended.{name}"] == 3
    assert made.share.total["extended.license"] == 2
    assert {node.id: dict(node.extended) for node in made.nodes} == {
        first: {name: 3},
        **{each: {} for each in others},
    }


@pytest.mark.parametrize(
    ("extended", "expected"),
    [
        ((("queue@77", 1),), "a NUMA node of this host"),
        ((("queue@x", 1),), "a NUMA node of this host"),
        ((("queue", 1), ("queue@0", 1)), "or without one"),
    ],
)
def test_a_countable_resource_lies_on_known_nodes(
    host: HostTopology, extended: tuple[tuple[str, int], ...], expected: str
) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        plan(host, extended=extended)


def test_what_a_kubelet_gave_away_is_not_offered(host: HostTopology) -> None:
    node = host.numa_nodes[0].id
    kubelet = KubeletState(given=((node, "hugepages-2Mi", 60 * MIB), (node, "memory", 64 * MIB)))
    free = dataclasses.replace(OPTIONS, memory_bytes=None)
    made = plan_host(free, with_hugepages(host, PAGES))
    left = beside_kubelet(made, free, kubelet)
    assert left.share.total["extended.hugepages-2Mi"] == 70
    assert left.share.total["memory_bytes"] == made.share.total["memory_bytes"] - 64 * MIB
    assert beside_kubelet(made, free, None) is made


def test_what_options_say_in_numbers_stays_beside_a_kubelet(host: HostTopology) -> None:
    node = host.numa_nodes[0].id
    kubelet = KubeletState(given=((node, "hugepages-2Mi", 60 * MIB), (node, "memory", GIB)))
    said = dataclasses.replace(OPTIONS, extended=(("hugepages-2Mi", 90),))
    left = beside_kubelet(plan_host(said, with_hugepages(host, PAGES)), said, kubelet)
    assert left.share.total["extended.hugepages-2Mi"] == 90
    assert left.share.total["memory_bytes"] == GIB


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cpu_milli": 10**9}, "cpu_milli"),
        ({"cpu_milli": 0}, "cpu_milli"),
        ({"slots_max": -1}, "slots_max"),
        ({"memory_pools": (("heap", 1),)}, "memory_pools"),
        ({"memory_pools": (("managed_memory_bytes", 2 * GIB),)}, "memory_pools"),
        ({"extended": (("license-x", -1),)}, "extended.license-x"),
        ({"cpus": "zero"}, "cpus"),
        ({"default_slot_fraction": 2.0}, "default_slot_fraction"),
    ],
)
def test_options_that_contradict_the_host_are_refused_by_name(
    host: HostTopology, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        plan(host, **changes)
    assert refused.value.field == field


ROOT = User("root", 0, 0, "/root")
NOBODY = User("nobody", 65534, 65534, "/nonexistent")


def test_tasks_run_as_the_configured_user_and_may_name_it() -> None:
    policy = UserPolicy(ROOT, NOBODY, allow_root_tasks=False)
    assert policy.resolve("") == policy.resolve("nobody") == policy.resolve("65534") == NOBODY


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        pytest.param(UserPolicy(ROOT, NOBODY, False), "root", id="root, not allowed"),
        pytest.param(UserPolicy(ROOT, NOBODY, False), "0", id="root by number"),
        pytest.param(UserPolicy(ROOT, NOBODY, False), "self", id="root as self"),
        pytest.param(UserPolicy(ROOT, NOBODY, True), "daemon", id="somebody else"),
        pytest.param(UserPolicy(ROOT, NOBODY, True), "no-such-user", id="nobody at all"),
        pytest.param(UserPolicy(NOBODY, NOBODY, True), "root", id="root without being root"),
    ],
)
def test_users_that_are_not_allowed(policy: UserPolicy, wanted: str) -> None:
    with pytest.raises(PermissionDenied, match="leave user empty to run as nobody"):
        policy.resolve(wanted)


def test_root_may_be_named_where_the_operator_allows_it() -> None:
    assert UserPolicy(ROOT, NOBODY, allow_root_tasks=True).resolve("root").uid == 0


@pytest.mark.needs("root")
@pytest.mark.parametrize("task_user", ["self", "", "root"])
def test_tasks_as_root_have_to_be_allowed(task_user: str) -> None:
    with pytest.raises(ConfigurationError, match="allow_root_tasks"):
        user_policy(options(task_user=task_user))
    assert user_policy(options(task_user=task_user, allow_root_tasks=True)).default.uid == 0


@pytest.mark.needs("root")
def test_a_task_user_that_does_not_exist_is_said() -> None:
    with pytest.raises(ConfigurationError, match="no such user"):
        user_policy(options(task_user="no-such-user"))


def test_what_is_not_enforced_is_said_with_the_fix() -> None:
    nothing = IsolationReport(
        "none", "none", "none", "none", "none", "process tree", "no cgroups", "run as root"
    )
    notes = notes_of(nothing)
    assert len(notes) == 4
    assert all("no cgroups" in note and "run as root" in note for note in notes)
    affinity = dataclasses.replace(nothing, cpuset="affinity")
    assert any("can change them" in note for note in notes_of(affinity))
    assert isolation_of(ENFORCED).notes == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"isolation": "full"}, "isolation", id="an unknown isolation"),
        pytest.param({"executor_id": "a/b"}, "executor_id", id="an id with a slash"),
        pytest.param(
            {"executor_id": "host-a"},
            "finegrain token create --executor host-a",
            id="no certificate",
        ),
    ],
)
def test_what_cannot_start_says_why_and_leaves_the_directory_free(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    told = options(
        state_dir=tmp_path / "state", run_dir=tmp_path, task_user="self", allow_root_tasks=True
    )
    for _ in range(2):
        with pytest.raises(FinegrainError, match=message):
            prepare(dataclasses.replace(told, **changes))
    assert not (tmp_path / "state" / "helper").exists()


def test_no_grpc_before_the_helper() -> None:
    """A process that has imported grpc must not fork, so the helper starts before the import."""
    code = "import sys, task_executor.main; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_reserved_cpus_are_shared_unless_they_are_reserved_strictly(host: HostTopology) -> None:
    last = str(host.allowed.max())
    rest = str(host.allowed - CpuSet.parse(last))
    for strict, shared in ((True, rest), (False, str(host.allowed))):
        made = plan(host, reserved_cpus=last, reserved_cpus_strict=strict)
        cpus = made.share.host_cpus
        assert cpus is not None
        assert (str(cpus.slot_cpus), str(cpus.reserved)) == (rest, last)
        assert str(made.share.shared_cpus) == shared
        assert made.share.total["cpu_milli"] == 1000 * (len(host.allowed) - 1)
        assert (str(cpus.policy.reserved_cpus), cpus.policy.reserved_strict) == (last, strict)


def test_an_executor_with_a_share_of_cpu_time_gives_nobody_a_cpu(host: HostTopology) -> None:
    first = str(host.allowed.first(1))
    part, whole = plan(host, cpus=first, cpu_milli=700), plan(host, cpus=first, cpu_milli=1000)
    assert part.time_shared
    assert "set cpus of the executor instead" in part.warnings[-1]
    assert not whole.time_shared
    assert not any("share of the time" in warning for warning in whole.warnings)


def test_best_effort_has_a_capacity_in_percent_of_the_others(host: HostTopology) -> None:
    first = str(host.allowed.first(1))
    assert plan(host, cpus=first, best_effort_percent=250).share.total[BE_CPU] == 2500
    assert BE_CPU not in plan(host, cpus=first, best_effort_percent=0).share.total
    with pytest.raises(InvalidArgument, match="best_effort_percent"):
        plan(host, best_effort_percent=-1)


FOUR_CPUS = HostTopology(
    online=CpuSet.parse("0-3"),
    allowed=CpuSet.parse("0-3"),
    cores=tuple(Core(CpuSet.of(cpu), package=0, numa_node=cpu // 2) for cpu in range(4)),
    numa_nodes=(NumaNode(0, CpuSet.of(0, 1), GIB), NumaNode(1, CpuSet.of(2, 3), GIB)),
)


def test_best_effort_may_book_what_its_pool_can_give() -> None:
    for reserved, strict, pool in [("", False, "0-3"), ("0-1", False, "0-3"), ("0-1", True, "2-3")]:
        made = plan(FOUR_CPUS, reserved_cpus=reserved, reserved_cpus_strict=strict)
        assert made.share.host_cpus is not None
        assert str(CpuLedger(made.share.host_cpus).pools.best_effort) == pool
        assert made.share.total[BE_CPU] == 1000 * len(CpuSet.parse(pool))
    halved = plan(FOUR_CPUS, reserved_cpus="0-1", best_effort_percent=50)
    assert halved.share.total[BE_CPU] == 2000
    of_its_time = plan(FOUR_CPUS, reserved_cpus="0-1", cpu_milli=500)
    assert of_its_time.share.total[BE_CPU] == 500


def test_a_quota_of_cpu_time_holds_for_best_effort_too() -> None:
    limited = dataclasses.replace(FOUR_CPUS, limits=Limits(cpu_quota_milli=3000))
    total = plan(limited, reserved_cpus="0-1").share.total
    assert (total["cpu_milli"], total[BE_CPU]) == (2000, 3000)


def test_settings_are_announced_and_a_wrong_word_names_its_option(host: HostTopology) -> None:
    made = plan(host, bind_policy="fullpcpusonly", default_exclusive_policy="PCPULevel")
    assert made.share.host_cpus is not None
    message = host_cpus_to_proto(made.share.host_cpus, made.nodes)
    assert message.policy.bind == cpus_pb2.HOST_BIND_POLICY_FULL_PCPUS_ONLY
    assert message.policy.default_exclusive == cpus_pb2.EXCLUSIVE_POLICY_PCPU_LEVEL
    assert message.policy.alignment == cpus_pb2.NUMA_POLICY_UNSPECIFIED
    assert message.slot_cpus == str(host.allowed)
    assert [zone.memory_bytes for zone in message.numa] == [n.memory_bytes for n in made.nodes]
    with pytest.raises(InvalidArgument, match="alignment_policy") as wrong:
        plan(host, alignment_policy="SingleNode")
    assert "SingleNUMANode" in str(wrong.value)


def test_what_caps_the_cpu_time_of_a_slot_is_said() -> None:
    own = SlotSpec(
        "a",
        1,
        "job",
        ResourceProfile(1000),
        1000,
        10,
        assignment=CpuAssignment(QosClass.LSE, CpuSet.of(1)),
    )
    plain = dataclasses.replace(own, assignment=None)
    no_quota = dataclasses.replace(ENFORCED, cpu="none")
    assert [isolation_of(ENFORCED, each).cpu for each in (own, plain)] == ["cpus", "quota"]
    assert isolation_of(no_quota, own).notes == ()
    assert "does not limit" in isolation_of(no_quota, plain).notes[0]
    by_affinity = dataclasses.replace(ENFORCED, cpuset="affinity")
    assert isolation_of(by_affinity, own).cpu == "quota"


@pytest.mark.parametrize(
    ("extended", "hugepages", "countable"),
    [
        ((), "hard", ""),
        ((("gpu", 2),), "hard", "declared"),
        ((("hugepages-2Mi", 8),), "hard", "hard"),
        ((("hugepages-2Mi", 8),), "none", "declared"),
        ((("gpu", 2), ("hugepages-2Mi", 8)), "hard", "declared"),
    ],
)
def test_countable_resources_are_declared_unless_the_kernel_caps_them(
    extended: tuple[tuple[str, int], ...], hugepages: str, countable: str
) -> None:
    profile = ResourceProfile(1000, extended=extended)
    slot = SlotSpec("a", 1, "job", profile, 1000, 10)
    told = isolation_of(dataclasses.replace(ENFORCED, hugepages=hugepages), slot)
    assert told.countable == countable
    given_nothing = [note for note in told.notes if "(gpu)" in note]
    assert len(given_nothing) == ("gpu" in dict(extended))
    assert all("no devices are assigned" in note for note in given_nothing)


def test_reserved_cpus_that_are_isolated_are_in_no_pool() -> None:
    """The kernel never moves tasks between isolated cpus, also not between reserved ones."""
    topology = HostTopology(
        online=CpuSet.parse("0-3"),
        allowed=CpuSet.parse("0-3"),
        isolated=CpuSet.parse("2-3"),
        cores=tuple(Core(CpuSet.of(cpu), numa_node=0) for cpu in range(4)),
        numa_nodes=(NumaNode(0, CpuSet.parse("0-3"), 4 * GIB),),
        memory_total_bytes=4 * GIB,
    )
    reserved = CpuSet.parse("1-2")
    capacity = plan_capacity(topology, CapacityOptions(reserved_cpus=reserved))
    announced = host_cpus(options(), topology, capacity)
    ledger = CpuLedger(announced)
    assert (str(announced.slot_cpus), str(announced.isolated)) == ("0", "2")
    assert str(ledger.pools.shared) == "0-1"
