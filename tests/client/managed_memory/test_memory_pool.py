"""Pages of a pool: never more than the quota, given back when it shrinks."""

from __future__ import annotations

import ast
import sys
import threading
from pathlib import Path

import pytest

import finegrain_client.managed_memory as package
from finegrain_client.managed_memory import MemoryPool, PoolEmpty, SlotSocket, SlotSocketError

PAGE = 32 << 10


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_pool_has_as_many_pages_as_its_quota() -> None:
    pool = MemoryPool(PAGE, 3)
    pages = [pool.allocate() for _ in range(3)]
    for number, page in enumerate(pages):
        page.memory[:] = bytes([number]) * PAGE
    assert [page.memory[PAGE - 1] for page in pages] == [0, 1, 2]
    with pytest.raises(PoolEmpty, match="all 3 pages"):
        pool.allocate()
    pages[0].release()
    pages[0].release()
    pool.allocate()
    with pytest.raises(PoolEmpty):
        pool.allocate(timeout_s=0.01)


def test_a_waiting_operator_gets_the_page_that_another_thread_releases() -> None:
    pool = MemoryPool(PAGE, 1)
    page = pool.allocate()
    got = []
    waiting = threading.Thread(target=lambda: got.append(pool.allocate(timeout_s=None)))
    waiting.start()
    page.release()
    waiting.join(20)
    assert len(got) == 1


def test_a_quota_that_shrinks_takes_free_pages_at_once_and_others_when_they_are_released() -> None:
    used: list[int] = []
    pool = MemoryPool(PAGE, 1000, used.append)
    pages = [pool.allocate() for _ in range(1000)]
    for page in pages:
        page.memory[:] = b"x" * PAGE
    for page in pages[500:]:
        page.release()
    full = resident_bytes()
    pool.resize(100)
    assert full - resident_bytes() > 400 * PAGE
    assert (pool.over_quota, used[-1]) == (400, 500 * PAGE)
    with pytest.raises(PoolEmpty):
        pool.allocate()
    for page in pages[100:500]:
        page.release()
    assert (pool.over_quota, used[-1]) == (0, 100 * PAGE)
    assert full - resident_bytes() > 800 * PAGE
    pool.resize(101)
    pool.allocate()


def test_outside_of_a_slot_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FINEGRAIN_SLOT_SOCKET", raising=False)
    with pytest.raises(SlotSocketError, match="FINEGRAIN_SLOT_SOCKET is not set"):
        MemoryPool.for_operator("sort")


def test_an_executor_that_is_away_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    slot = SlotSocket(str(tmp_path / "gone.sock"))
    with pytest.raises(SlotSocketError, match="does not answer GetPeers"):
        slot.call("GetPeers", timeout_s=0.05)
    slot.close()


def test_it_uses_the_standard_library_only() -> None:
    folder = Path(str(package.__file__)).parent
    imported = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
    foreign = {
        name
        for name in imported
        if name.partition(".")[0] not in sys.stdlib_module_names
        and not name.startswith("finegrain_client.managed_memory")
    }
    assert not foreign
