"""No machine, however strange, ends the daemon.

Files of the recorded machines vanish, turn into garbage or hold absurd numbers, by seed.  Detection
must not raise, and its result must still be a possible machine.
"""

import json
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from finegrain.cpuset import CpuSet, union
from finegrain.errors import InvalidArgument
from finegrain.topology import HostTopology
from finegrain.topology_text import render_topology
from task_executor.host.capacity import plan_capacity
from task_executor.host.detection import detect
from task_executor.host.detection.reader import TreeReader

DATA = Path(__file__).parents[3] / "data" / "topologies"
NAMES = [entry["name"] for entry in json.loads((DATA / "index.json").read_text())]
SEEDS = range(4)
QUICK = [(name, 0) for name in NAMES[::4]]
GARBAGE = (
    "",
    "-1",
    "(null)",
    "max",
    "9" * 400,
    "0-99999999",
    "0-8191",
    "ffffffff,ffffffff,ffffffff",
    "\ufffd\0\x01",
    "0::/../..\0/x",
    "MemTotal: -5 kB\nHugepagesize: 9999999999999999 kB",
    "1 2 3 four",
    "²",
)


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.full)
        for case in product(NAMES, SEEDS)
    ],
)
def test_garbled_machine_is_still_a_machine(
    name: str, seed: int, tree: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    random_of_test = random.Random(f"{name}/{seed}")
    text, names = TreeReader.text, TreeReader.names
    share = random_of_test.choice((0.01, 0.1, 0.5))

    def garbled_text(reader: TreeReader, path: str) -> str | None:
        content = text(reader, path)
        if random_of_test.random() > share:
            return content
        return random_of_test.choice((None, garbled(random_of_test, content or "")))

    def garbled_names(reader: TreeReader, path: str) -> list[str]:
        found = names(reader, path)
        if random_of_test.random() > share:
            return found
        kept = [each for each in found if random_of_test.random() > 0.2]
        return [
            *kept,
            "cpu99999999999",
            "node7",
            "cpux",
            "0000:zz:00.0",
            "hugepages-kB",
            "cpu\u00b2",
        ]

    monkeypatch.setattr(TreeReader, "text", garbled_text)
    monkeypatch.setattr(TreeReader, "names", garbled_names)
    check(detect(tree(name)))


@pytest.mark.parametrize("name", ["qemu-v2-nested-limits", "24em64t-2n6c2t_2mic"])
def test_files_that_are_not_files(name: str, tree: Callable[[str], Path]) -> None:
    """There are directories instead of files, files instead of directories, loops, and binary
    content.
    """
    root = tree(name)
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    for position, path in enumerate(random.Random(name).sample(files, len(files) // 3)):
        path.unlink()
        if position % 3 == 0:
            path.mkdir()
        elif position % 3 == 1:
            path.symlink_to(path.name)
        else:
            path.write_bytes(bytes(range(256)))
    shutil.rmtree(root / "sys/devices/system/node/node0")
    (root / "sys/devices/system/node/node0").write_text("")
    check(detect(root))


def test_huge_files_are_not_read_to_the_end(tmp_path: Path) -> None:
    cpu = tmp_path / "sys/devices/system/cpu"
    cpu.mkdir(parents=True)
    with (cpu / "online").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (cpu / "cpu0").mkdir()
    host = detect(tmp_path)
    assert str(host.online) == "0"
    assert any("larger than" in warning for warning in host.warnings)


def test_an_empty_directory_is_a_machine_without_anything(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        host = detect(root)
        assert not host.online
        assert "no online CPU found in /sys or /proc" in host.warnings
        with pytest.raises(InvalidArgument, match="allowed cpus"):
            plan_capacity(host)


def garbled(source: random.Random, content: str) -> str:
    if not content or source.random() < 0.6:
        return source.choice(GARBAGE)
    position = source.randrange(len(content))
    return content[:position] + source.choice(GARBAGE) + content[position + 2 :]


def check(host: HostTopology) -> None:
    """Checks rules that hold for every machine, however strange."""
    assert partition(host.online, [core.cpus for core in host.cores])
    assert partition(host.online, [package.cpus for package in host.packages])
    assert host.allowed <= host.online
    assert host.isolated <= host.online
    assert host.offline.isdisjoint(host.online)
    assert union(node.cpus for node in host.numa_nodes) <= host.online
    assert len({node.id for node in host.numa_nodes}) == len(host.numa_nodes) > 0
    assert all(0 <= core.package < len(host.packages) for core in host.cores)
    node_ids = {node.id for node in host.numa_nodes}
    assert all(core.numa_node is None or core.numa_node in node_ids for core in host.cores)
    assert all(each.numa_node in node_ids | {None} for each in host.pci_devices)
    assert HostTopology.from_dict(json.loads(json.dumps(host.to_dict()))) == host
    try:
        capacity = plan_capacity(host)
    except InvalidArgument:
        assert not host.allowed - host.isolated
        return
    assert capacity.cpus <= host.allowed
    assert 0 < capacity.cpu_milli_total <= 1000 * len(capacity.cpus)
    assert capacity.memory_bytes_total >= 0
    assert all(node.memory_bytes >= 0 for node in capacity.nodes)
    assert render_topology(host, capacity)


def partition(whole: CpuSet, parts: list[CpuSet]) -> bool:
    return union(parts) == whole and sum(len(part) for part in parts) == len(whole)
