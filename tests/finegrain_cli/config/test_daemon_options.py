"""The options of the daemons: every key arrives, and a key that is not set has the daemon's
default.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
)
from finegrain.errors import ConfigurationError
from finegrain_cli.config.daemon_options import (
    database_url,
    resource_manager_options,
    task_executor_options,
)
from finegrain_cli.config.load import load_configuration
from finegrain_cli.config.model import Settings
from resource_manager.engine.model.settings import Fairness
from resource_manager.options import ResourceManagerOptions
from task_executor.options import TaskExecutorOptions


def test_without_settings_the_daemons_defaults_hold() -> None:
    rm = resource_manager_options(Settings())
    executor = task_executor_options(Settings())

    assert rm == ResourceManagerOptions(state_dir=rm.state_dir)
    assert executor == TaskExecutorOptions(
        state_dir=executor.state_dir, run_dir=executor.run_dir, managers=()
    )


def test_every_option_of_both_daemons_can_be_configured(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(ALL)

    settings = load_configuration(str(file), environment={}).settings

    for changed, default in (
        (resource_manager_options(settings), resource_manager_options(Settings())),
        (resource_manager_options(settings).fairness, Fairness()),
        (task_executor_options(settings), task_executor_options(Settings())),
    ):
        same = [
            each.name
            for each in fields(changed)
            if getattr(changed, each.name) == getattr(default, each.name)
        ]
        assert same == []


def test_the_join_port_can_be_closed() -> None:
    def join_address(**keys: str) -> str:
        return resource_manager_options(Settings.model_validate({"rm": keys})).join_address

    assert join_address(listen="10.0.0.1:7000") == "10.0.0.1:7003"
    assert join_address(join_listen="10.0.0.1:1") == "10.0.0.1:1"
    assert join_address(join_listen="none") == ""


@pytest.mark.parametrize("word", ["never", "none"])
def test_tallies_that_never_fade_have_a_word_of_their_own(word: str) -> None:
    settings = load_configuration(environment={"FINEGRAIN_FAIRNESS__HALF_LIFE": word}).settings

    assert resource_manager_options(settings).fairness.half_life_ms is None


def test_no_metrics_port_where_none_is_wanted() -> None:
    settings = load_configuration(environment={"FINEGRAIN_RM__METRICS_LISTEN": "none"}).settings

    assert resource_manager_options(settings).listen.metrics_address == ""


@pytest.mark.parametrize("text", ["FullPCPUsOnly", "fullpcpusonly", "FULLPCPUSONLY"])
def test_words_of_cpu_policies_are_read_in_any_case(text: str) -> None:
    settings = load_configuration(environment={"FINEGRAIN_EXECUTOR__BIND_POLICY": text}).settings

    assert task_executor_options(settings).bind_policy == "FullPCPUsOnly"


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("bind_policy", "FullPCPUs", "did you mean FullPCPUsOnly?"),
        ("alignment_policy", "default", "one of None, BestEffort, Restricted, SingleNUMANode"),
        ("numa_strategy", "most", "did you mean MostAllocated?"),
        ("default_bind_policy", "ConstrainedBurst", "one of None, FullPCPUs, SpreadByPCPUs"),
        ("best_effort_squeeze", "memory", "one of none, cpuset, quota"),
        ("best_effort_percent", "-1", "at least 0"),
    ],
)
def test_a_cpu_setting_that_is_none(key: str, text: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(environment={f"FINEGRAIN_EXECUTOR__{key.upper()}": text})

    assert f"executor.{key} is" in caught.value.message
    assert told in caught.value.message


def test_the_policy_of_the_cluster_has_every_key(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(ALL)

    policy = resource_manager_options(load_configuration(str(file)).settings).cluster_policy

    assert policy == HostPolicy(
        bind=HostBindPolicy.FULL_PCPUS_ONLY,
        numa_strategy=NumaStrategy.MOST_ALLOCATED,
        alignment=NumaPolicy.RESTRICTED,
        default_bind=BindPolicy.SPREAD_BY_PCPUS,
        default_exclusive=ExclusivePolicy.PCPU_LEVEL,
    )
    assert resource_manager_options(Settings()).cluster_policy == HostPolicy()


def test_no_kubelet_is_looked_for_where_none_is_wanted() -> None:
    settings = load_configuration(environment={"FINEGRAIN_EXECUTOR__KUBELET_DIR": "none"}).settings

    assert task_executor_options(settings).kubelet_dir is None


def test_the_database_lies_in_the_state_directory_unless_named() -> None:
    assert database_url(Settings.model_validate({"rm": {"state_dir": "/s"}})) == (
        "sqlite:////s/finegrain.db"
    )
    named = Settings.model_validate({"rm": {"database": "postgresql://h/d"}})
    assert database_url(named) == "postgresql://h/d"


ALL = """
[log]
level = "debug"
format = "json"
[rm]
bind_policy = "FullPCPUsOnly"
numa_strategy = "MostAllocated"
alignment_policy = "Restricted"
default_bind_policy = "SpreadByPCPUs"
default_exclusive_policy = "PCPULevel"
standby = true
advertise = "rm-b:7170"
state_dir = "/srv/rm"
database = "postgresql://host/books"
listen = "127.0.0.1:1"
join_listen = "127.0.0.1:3"
web_listen = "127.0.0.1:4"
web_certificate = "cert.pem"
web_key = "key.pem"
web_advertise = "https://rm.example.org"
join_advertise = "rm-b:7173"
strategy = "spread"
revocation = "on"
revocation_grace = "20s"
report_interval = "1s"
lost_timeout = "9s"
lease = "20s"
cpu_min = "0.1"
memory_min = "8M"
job_requests_max = 10
job_scheduling_classes_max = 5
requests_max = 20
infeasible_after = "9s"
job_calls_max = 3
offer_targets = ["10.1.0.0/16"]
job_streams_max = 4
job_events_max = 1000
cluster_events_max = 1000
cluster_events_age = "1d"
ended_retention = "1h"
providers_file = "/etc/finegrain/providers.toml"
database_lease = "2s"
[fairness]
usage_measure = "slots"
order = "arrival"
half_life = "never"
lookahead = 0
starvation_timeout = "1m"
starvation_placements = 100
reservations_max = 2
reserved_part_max = 0.5
usage_interval = "1s"
slots_max = 9
[executor]
state_dir = "/srv/executor"
run_dir = "/run/x"
manager = ["a:1", "b:2"]
executor_id = "host-x"
listen = "127.0.0.1:2"
advertise = "host-x:2"
join_token_file = "/t/join"
provided_as = "small"
reserved_cpus = "0"
reserved_cpus_strict = true
reserved_memory = "1G"
bind_policy = "FullPCPUsOnly"
numa_strategy = "MostAllocated"
alignment_policy = "Restricted"
default_bind_policy = "SpreadByPCPUs"
default_exclusive_policy = "PCPULevel"
best_effort_percent = 50
best_effort_squeeze = "cpuset"
best_effort_squeeze_threshold = 80
best_effort_squeeze_minimum = 10
kubelet_dir = "none"
devices = "none"
open_devices = ["rdma"]
gpu_partitions = ["0+1"]
gpu_partitions_only = true
mps = true
fake_gpus = "dgx-a100"
gpu_parking = "same-gpu"
foreign_gpu_use = "ignore"
gpu_context_memory = "512Mi"
kubelet_config = "/etc/kubelet.yaml"
cpus = "1-3"
cpu = 2
memory = "3G"
default_slot_fraction = 0.25
number_of_slots = 4
slots_max = 9
pids_max = 99
task_ports = "21000-21099"
default_slot_managed_percent = 35
default_slot_cpu = 1.5
default_slot_memory = "1Gi"
default_slot_memory_percent = { network = 10 }
managed_memory_page = "64KiB"
isolation = "none"
cgroup_parent = "/finegrain.slice"
task_user = "self"
allow_root_tasks = true
task_kill_grace = "1s"
output_limit = "1M"
offer_timeout = "1s"
offer_targets = ["10.0.0.0/8"]
orphan_timeout = "never"
helper_socket = "/run/x/socket"
helper_state_dir = "/var/x"
front_user = "front"
stop_tasks_on_exit = true
[executor.labels]
zone = "a"
[executor.memory_pools]
managed_memory_bytes = "1G"
[executor.extended]
licence = 3
[devices.npu]
paths = ["/dev/npu*"]
"""
