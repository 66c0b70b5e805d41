"""Random steps on one host's devices: no device is ever above its amount, on either side.

The resource manager's ledger chooses, the executor's ledger checks each choice, and both are
compared with sums over the slots. For a million steps:

    python -m tests.resource_manager.engine.devices.test_device_machine 1000000
"""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from finegrain.cpu_assignment import CpuAssignment
from finegrain.devices.device import GPU, RDMA, DeviceShare, HostDevices, Pairs
from finegrain.devices.names import device_requests
from finegrain.devices.request import DeviceRequest
from finegrain.errors import ResourceExhausted
from finegrain.resources import GIB, ResourceProfile, fits
from resource_manager.engine.devices.choose import choose_devices
from resource_manager.engine.devices.layout import DeviceLayout
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.devices.resizing import with_devices_of
from resource_manager.engine.model.host_refusal import HostRefusal
from task_executor.engine.device_ledger import DeviceLedger as ExecutorLedger
from task_executor.engine.slots import SlotKey
from tests.simulation.device_machines import MIG, renumbered, some_devices

STEPS = 60
HOSTS = [some_devices(Random(seed), "host", 2) for seed in range(40)]
REQUESTS = [
    device_requests(each)
    for each in (
        {"gpu": 50},
        {"gpu": 7},
        {"gpu": 100},
        {"gpu": 200},
        {"gpu-core": 30, "gpu-memory": 2 * GIB},
        {"gpu-core": 100},
        {"gpu-memory-ratio": 60},
        {"gpu-memory": 3 * GIB + 1},
        {"gpu.shared": 2, "gpu-memory-ratio": 100},
        {"gpu": 100, "rdma": 100},
        {"gpu": 200, "rdma": 1},
        {"rdma": 1},
        {MIG: 100},
    )
]

SHARES: tuple[Pairs, ...] = (
    (("gpu-core", 20),),
    (("gpu-core", 20), ("gpu-memory-ratio", 60)),
    (("gpu-core", 100), ("gpu-memory-ratio", 100)),
    (("gpu-memory", 3 * GIB + 1),),
)
"""What slots ask for of each of their GPUs when they are resized or unparked."""

EMPTY = ResourceProfile(1_000)


class DeviceMachine(RuleBasedStateMachine):
    """Slots come and go on one host, whose devices vanish, return and are cordoned."""

    def __init__(self) -> None:
        super().__init__()
        self.hardware = HostDevices()
        self.absent: set[str] = set()
        self.cordoned: set[str] = set()
        self.slots: dict[SlotKey, tuple[DeviceShare, ...]] = {}
        self.parked: dict[SlotKey, tuple[DeviceShare, ...]] = {}
        self.made = 0
        self.look()

    def look(self) -> None:
        """Both sides learn again which devices there are, as after a start of the executor."""
        present = tuple(each for each in self.hardware.devices if each.uuid not in self.absent)
        self.present = replace(self.hardware, devices=present)
        self.ledger = DeviceLedger(DeviceLayout(self.present))
        self.executor = ExecutorLedger(self.present)
        for key, shares in self.slots.items():
            self.ledger.add(shares)
            self.executor.put(key, [CpuAssignment(devices=shares)])
        self.set_unusable()

    def set_unusable(self) -> None:
        self.ledger.set_unusable(
            {
                (each.type, each.uuid): "cordoned"
                for each in self.hardware.devices
                if each.uuid in self.cordoned
            }
        )

    # -- steps -------------------------------------------------------------------------------

    @rule(host=st.sampled_from(HOSTS))
    def begin(self, host: HostDevices) -> None:
        """The first devices are those of a drawn host."""
        if not self.hardware.devices:
            self.hardware = host
            self.look()

    @rule(
        requests=st.sampled_from(REQUESTS),
        near=st.sampled_from(("", "preferred", "required")),
        functions=st.booleans(),
        nodes=st.sampled_from((None, (0,), (1,), (0, 1))),
    )
    def grant(
        self,
        requests: tuple[DeviceRequest, ...],
        near: str,
        functions: bool,
        nodes: tuple[int, ...] | None,
    ) -> None:
        """Chooses devices for one more slot, which the executor must accept."""
        if near and len(requests) > 1:
            requests = tuple(
                replace(each, near="gpu", near_required=near == "required", per_group=True)
                if each.type == RDMA
                else each
                for each in requests
            )
        if functions:
            requests = tuple(
                replace(each, functions=()) if each.type == RDMA else each for each in requests
            )
        before = dict(self.ledger.used)
        found = choose_devices(self.ledger, requests, nodes)
        assert self.ledger.used == before
        if isinstance(found, HostRefusal):
            assert found.text
            self.check_refusal(requests, nodes)
            return
        self.made += 1
        key = SlotKey(f"slot-{self.made}", 1)
        profile = ResourceProfile(1_000, devices=requests)
        assignment = CpuAssignment(devices=found)
        assert not self.cordoned & {each.uuid for each in found}
        assert not self.absent & {each.uuid for each in found}
        assert len({each.uuid for each in found}) == len(found)
        on_nodes = {each.uuid for each in self.present.devices if nodes and each.numa_node in nodes}
        assert nodes is None or {each.uuid for each in found} <= on_nodes
        self.executor.check(key, profile, assignment)
        self.executor.put(key, [assignment])
        self.ledger.add(found)
        self.slots[key] = found

    def check_refusal(
        self, requests: tuple[DeviceRequest, ...], nodes: tuple[int, ...] | None
    ) -> None:
        """A request for devices of one type is refused only if too few have enough left."""
        [request, *others] = requests
        if others or request.functions is not None or self.present.partitions:
            return
        left = self.left()
        suited = [
            each
            for each in self.present.devices
            if each.type == request.type
            and each.uuid not in self.cordoned
            and (nodes is None or each.numa_node in nodes)
            and fits(dict(request.amounts), left[each.uuid])
        ]
        assert len(suited) < request.count

    @rule(at=st.integers(0, 1_000))
    def free(self, at: int) -> None:
        """A slot ends."""
        if self.slots:
            key = list(self.slots)[at % len(self.slots)]
            self.ledger.remove(self.slots.pop(key))
            self.parked.pop(key, None)
            self.executor.remove(key)

    @rule(at=st.integers(0, 1_000))
    def park(self, at: int) -> None:
        """A slot gives up its GPUs."""
        if not self.slots:
            return
        key = list(self.slots)[at % len(self.slots)]
        assignment = CpuAssignment(devices=self.slots[key])
        found = with_devices_of(assignment, EMPTY, EMPTY, self.ledger)
        assert isinstance(found, CpuAssignment)
        if found.parked_devices:
            self.change(key, found)
            self.parked[key] = found.parked_devices

    @rule(at=st.integers(0, 1_000), amounts=st.sampled_from(SHARES))
    def resize(self, at: int, amounts: Pairs) -> None:
        """A slot gets another share of its GPUs, unless the ledger refuses."""
        if not self.slots:
            return
        key = list(self.slots)[at % len(self.slots)]
        before = self.slots[key]
        gpus = [each for each in before if each.type == GPU]
        profile = replace(EMPTY, devices=(DeviceRequest(GPU, len(gpus), amounts),))
        if not gpus:
            return
        found = with_devices_of(CpuAssignment(devices=before), EMPTY, profile, self.ledger)
        if isinstance(found, HostRefusal):
            return
        assert [each.uuid for each in found.devices] == [each.uuid for each in before]
        for old, new in zip(before, found.devices, strict=True):
            if old.type == GPU:
                assert dict(amounts).items() <= dict(new.amounts).items()
            if not fits(dict(new.amounts), dict(old.amounts)):
                assert new.uuid not in self.cordoned | self.absent
        self.change(key, found)

    @rule(at=st.integers(0, 1_000), amounts=st.sampled_from(SHARES))
    def unpark(self, at: int, amounts: Pairs) -> None:
        """A parked slot gets GPUs again, unless the ledger refuses."""
        if not self.parked:
            return
        key = list(self.parked)[at % len(self.parked)]
        has = CpuAssignment(devices=self.slots[key], parked_devices=self.parked[key])
        gpus = DeviceRequest(GPU, len(self.parked[key]), amounts)
        found = with_devices_of(has, EMPTY, replace(EMPTY, devices=(gpus,)), self.ledger)
        if isinstance(found, HostRefusal):
            return
        regained = {each.uuid for each in found.devices} - {e.uuid for e in has.devices}
        assert not regained & (self.cordoned | self.absent)
        assert len(regained) == len(self.parked[key])
        self.change(key, found)
        del self.parked[key]

    def change(self, key: SlotKey, assignment: CpuAssignment) -> None:
        """A slot has these devices now."""
        self.ledger.remove(self.slots[key])
        self.ledger.add(assignment.devices)
        self.executor.put(key, [assignment])
        self.slots[key] = assignment.devices

    @rule(at=st.integers(0, 20))
    def cordon(self, at: int) -> None:
        """A device gets no new work."""
        if self.hardware.devices:
            self.cordoned.add(self.hardware.devices[at % len(self.hardware.devices)].uuid)
            self.set_unusable()

    @rule()
    def uncordon(self) -> None:
        """All devices get work again."""
        self.cordoned.clear()
        self.set_unusable()

    @rule(gone=st.sets(st.integers(0, 8)), seed=st.integers(0, 99), renumber=st.booleans())
    def vanish_and_return(self, gone: set[int], seed: int, renumber: bool) -> None:
        """Exactly these devices are absent now; the others may have other minor numbers."""
        self.absent = {each.uuid for at, each in enumerate(self.hardware.devices) if at in gone}
        if renumber:
            self.hardware = renumbered(Random(seed), self.hardware)
        self.look()

    @rule(at=st.integers(0, 1_000))
    def repeat(self, at: int) -> None:
        """An order arrives again, and another slot asks for the same devices."""
        if not self.slots:
            return
        key = list(self.slots)[at % len(self.slots)]
        shares = self.slots[key]
        if self.absent & {each.uuid for each in shares}:
            return
        # Use a request for exactly these shares.
        profile = ResourceProfile(
            1_000,
            devices=tuple(
                DeviceRequest(type_, sum(each.type == type_ for each in shares), ())
                for type_ in sorted({each.type for each in shares})
            ),
        )
        self.executor.check(key, profile, CpuAssignment(devices=shares))
        left = self.left()
        too_much = any(not fits(dict(each.amounts), left[each.uuid]) for each in shares)
        if too_much or any(each.functions for each in shares):
            with pytest.raises(ResourceExhausted):
                self.executor.check(SlotKey("new", 1), profile, CpuAssignment(devices=shares))

    # -- what holds after each step ----------------------------------------------------------

    def sums(self) -> dict[str, dict[str, int]]:
        """Returns what slots have of each device."""
        found: dict[str, dict[str, int]] = {}
        for shares in self.slots.values():
            for share in shares:
                sums = found.setdefault(share.uuid, {})
                for name, amount in share.amounts:
                    sums[name] = sums.get(name, 0) + amount
        return found

    def left(self) -> dict[str, dict[str, int]]:
        """Returns what is left of each device."""
        sums = self.sums()
        return {
            each.uuid: {
                name: amount - sums.get(each.uuid, {}).get(name, 0)
                for name, amount in each.capacity
            }
            for each in self.hardware.devices
        }

    @invariant()
    def no_device_is_above_its_amount(self) -> None:
        """Both ledgers agree with the slots, and no device or function is given out twice."""
        sums = self.sums()
        assert all(amount >= 0 for each in self.left().values() for amount in each.values())
        assert {uuid: used for (_, uuid), used in self.ledger.used.items()} == sums
        assert {uuid: used for (_, uuid), used in self.executor.used().items()} == sums
        assert self.ledger.problems() == []
        functions = [f for shares in self.slots.values() for each in shares for f in each.functions]
        assert len(set(functions)) == len(functions)
        assert self.ledger.functions == set(functions)


def run(steps: int) -> None:
    """Runs the machine for about this many steps."""
    run_state_machine_as_test(
        DeviceMachine,
        settings=settings(
            max_examples=max(steps // STEPS, 1),
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_device_is_above_its_amount_at_any_moment() -> None:
    run(3_000)


if __name__ == "__main__":
    run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
