"""Commands about cpus: machines, cpu policies of requests and hosts, and cpu states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.mapping.stored import STORED
from finegrain.neighbors import read_rule
from finegrain.resources import MIB, Amounts
from resource_manager.engine.executors.host_settings import host_policy_view
from resource_manager.engine.explain.topology import topology_view
from tests.scenarios import cpus_render, devices
from tests.scenarios.commands import Commands
from tests.scenarios.words import Words
from tests.support.devices import announced as devices_announced
from tests.support.machines import machine

CLUSTER = "cluster"
"""In place of the name of a host, this name means the settings of the whole cluster."""


class CpuCommands(Commands):
    """Part of the language; `language.py` joins the parts."""

    def do_policy(self, words: Words) -> Iterator[str]:
        """Sets or clears a policy of a host or the cluster, and prints the effective one."""
        name = words.subjects[0]
        executor_id = "" if name == CLUSTER else name
        cleared = tuple(words.names("clear"))
        wanted = host_policy(words)
        if cleared or wanted != HostPolicy():
            self.cluster.set_host_policy(executor_id, *cleared, policy=wanted)
            yield from self._effects()
        view = host_policy_view(
            self.cluster.state.hosts, self.cluster.state.host_settings, executor_id
        )
        yield from cpus_render.settings(name, view.effective)

    def do_cpu_state(self, words: Words) -> Iterator[str]:
        """Changes the cpus that an executor sees; with `unsaid`, only its next report shows it."""
        unsaid = words.flag("unsaid")
        executor = self._executor(words)
        seen = executor.cpu_state
        if "offline" in words.values:
            seen = replace(seen, offline_cpus=CpuSet.parse(_some(words.values.pop("offline"))))
        if "kubelet" in words.values:
            seen = replace(seen, kubelet_cpus=CpuSet.parse(_some(words.values.pop("kubelet"))))
        layer = {k[8:]: words.values.pop(k) for k in list(words.values) if k.startswith("kubelet_")}
        if layer:
            words.values.update(layer)
            seen = replace(seen, kubelet_policy=host_policy(words))
        executor.cpu_state = seen
        if not unsaid:
            yield from self._report(executor)

    def do_cpus(self, words: Words) -> Iterator[str]:
        """Prints the pools of a host, the cpus of slots, and the free amounts of NUMA nodes."""
        yield from cpus_render.host(topology_view(self.cluster.state, words.subjects[0]))


def cpu_policy(words: Words) -> CpuPolicy:
    """Returns the cpu policy of a request; a value with ! is required."""

    def word(name: str) -> tuple[str, bool]:
        text = words.values.pop(name, "Default")
        return text.removesuffix("!"), text.endswith("!")

    bind, exclusive, numa = word("bind"), word("exclusive"), word("numa")
    found = CpuPolicy(
        QosClass(words.values.pop("qos", "LS")),
        BindPolicy(bind[0]),
        bind[1],
        ExclusivePolicy(exclusive[0]),
        exclusive[1],
        NumaPolicy(numa[0]),
        numa[1],
        words.labels("slot_labels"),
        tuple(
            read_rule(kind, words.values.pop(f"{kind}_slots"), apart=kind == "apart")
            for kind in ("near", "apart")
            if f"{kind}_slots" in words.values
        ),
    )
    return PLAIN if found == PLAIN else found


def host_policy(words: Words) -> HostPolicy:
    """Returns the settings of one source."""
    strict, shared = words.flag("strict"), words.flag("shared")
    texts = {
        name: words.values.pop(name, "")
        for name in (
            "bind", "strategy", "alignment", "reserved", "default_bind", "default_exclusive"
        )
    }  # fmt: skip
    return HostPolicy(
        HostBindPolicy(texts["bind"]) if texts["bind"] else None,
        NumaStrategy(texts["strategy"]) if texts["strategy"] else None,
        NumaPolicy(texts["alignment"]) if texts["alignment"] else None,
        CpuSet.parse(_some(texts["reserved"])) if texts["reserved"] else None,
        True if strict else False if shared else None,
        BindPolicy(texts["default_bind"]) if texts["default_bind"] else None,
        ExclusivePolicy(texts["default_exclusive"]) if texts["default_exclusive"] else None,
    )


def machine_of(words: Words) -> tuple[Amounts, str, str]:
    """Returns the totals, topology and cpus that an executor on this machine announces."""
    made = machine(words.values.pop("machine"), words.number("node_mem", 16_384) * MIB)
    huge_pages = words.number("huge")
    isolated = CpuSet.parse(_some(words.values.pop("isolated", "none")))
    configured = host_policy(words)
    kept_back = configured.reserved_cpus or EMPTY
    announced = made.announced(
        kept_back=kept_back,
        isolated=isolated,
        policy=STORED.to_json(configured),
        huge_pages=huge_pages,
    )
    strict = configured.reserved_strict is True
    total = made.total(kept_back=kept_back, strict=strict, huge_pages=huge_pages)
    topology, of_devices = devices_announced(
        devices.host_devices(words, len(made.topology.get("numa_nodes", ())) or 1)
    )
    topology = {**made.topology, **topology}
    return {**total, **of_devices}, json.dumps(topology), json.dumps(announced)


def _some(text: str) -> str:
    return "" if text == "none" else text
