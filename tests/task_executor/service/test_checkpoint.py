"""The state directory: complete after any crash, locked, and damage is reported."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    HostPolicy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.errors import ConfigurationError, InvalidArgument, Reason
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import Isolation
from finegrain.values.states import TaskState
from task_executor.engine.slots import CarveState, EndedSlot, Slot, SlotKey, SlotSpec
from task_executor.host.helper_messages import TaskFault
from task_executor.service import checkpoint
from task_executor.service.checkpoint import (
    SavedState,
    StateDirectory,
    state_content,
    write_document,
)
from task_executor.service.denials import Denials
from task_executor.service.group_commit import GroupCommit
from task_executor.service.task_table import Task
from tests.support.disk_calls import DiskCalls

OWNER = "user/alice"
HASH = "ab" * 32  # the hash of a secret, as in earlier versions
KEY = SlotKey("a", 1)
PROFILE = ResourceProfile(500, 1 << 20, extended=(("license-x", 1),))
ASSIGNMENT = CpuAssignment(
    QosClass.LSR,
    CpuSet.parse("2-3"),
    BindPolicy.FULL_PCPUS,
    ExclusivePolicy.PCPU_LEVEL,
    (NodeShare(0, (("cpu_milli", 500), ("memory_bytes", 1 << 20))),),
    CpuSet.parse("0"),
    (PoolName(0, 0), PoolName(1, 1)),
    ("one node would have been better",),
)
SPEC = SlotSpec(*KEY, "job", PROFILE, 600, 512, "2-3", OWNER, "host-b:1", 3, ASSIGNMENT)
PLAIN = SlotSpec("b", 2, "job", ResourceProfile(100), 100, 0)
STATE = SavedState(
    "host-a",
    "instance",
    7,
    "boot",
    (
        Slot(
            SPEC, CarveState.ALLOCATED, Isolation("quota"), 4, "X", True, replace(SPEC, cpus="2-4")
        ),
        Slot(PLAIN, CarveState.FREEING),
    ),
    (EndedSlot(KEY, "SLOT_BROKEN"),),
    2,
    HostPolicy(bind=HostBindPolicy.NONE, reserved_cpus=CpuSet.parse("0-1"), reserved_strict=True),
    9,
    denials=Denials(3, ("1f", "user/bob")),
)


@pytest.fixture
def directory(tmp_path: Path) -> StateDirectory:
    return StateDirectory.open(tmp_path / "state")


def test_a_fresh_directory_gets_a_fresh_identity(directory: StateDirectory) -> None:
    first, second = directory.load("host-a"), directory.load("host-a")
    assert (first.executor_id, first.rm_epoch, first.slots) == ("host-a", 0, ())
    assert first.instance_id != second.instance_id


def test_what_was_saved_is_read_again(directory: StateDirectory) -> None:
    directory.save(STATE)
    assert directory.load("host-a") == directory.load("") == STATE
    assert not directory.damage


def test_a_document_from_before_certificates_is_read(directory: StateDirectory) -> None:
    """Format 3 has secrets of jobs instead of owners, and no denials."""
    content = state_content(STATE)
    del content["denials"]
    content["user_token_sha256"] = HASH
    for slot in content["slots"]:
        del slot["spec"]["owner"]
        slot["spec"]["job_secret_sha256"] = HASH
    del content["slots"][0]["becoming"]["owner"]
    write_document(directory.path / "state.json", content)
    saved = directory.load("host-a")
    assert (saved.denials, [slot.spec.owner for slot in saved.slots]) == (Denials(), ["", ""])
    assert not directory.damage


def test_slots_of_earlier_versions_have_neither_sizes_nor_cpus(directory: StateDirectory) -> None:
    """Formats 1 and 2 lack these keys."""
    content = state_content(STATE)
    for slot in content["slots"]:
        del slot["becoming"], slot["spec"]["resize_number"], slot["spec"]["assignment"]
    write_document(directory.path / "state.json", content)
    own, plain = directory.load("host-a").slots
    assert own.spec == replace(SPEC, resize_number=0, assignment=None)
    assert (own.becoming, plain) == (None, STATE.slots[1])


def test_the_document_is_spelled_as_ever() -> None:
    content = state_content(STATE)
    assert content["ended"] == [{"key": ["a", 1], "reason": "SLOT_BROKEN"}]
    assert content["policy"] == {"bind": "None", "reserved_cpus": "0-1", "reserved_strict": True}
    assert content["slots"][1] == {
        "spec": {
            "allocation_id": "b",
            "generation": 2,
            "job_id": "job",
            "profile": {"cpu_milli": 100},
            "cpu_limit_milli": 100,
            "pids_max": 0,
            "cpus": "",
            "owner": "",
            "target_address": "",
            "resize_number": 0,
            "assignment": None,
            "time_limit_ms": None,
        },
        "state": "FREEING",
        "isolation": {},
        "allocated_time_ms": 0,
        "end_reason": "",
        "accepted": False,
        "becoming": None,
        "limited_since_ms": None,
        "reuse_number": 0,
    }
    assert content["slots"][0]["spec"]["assignment"] == {
        "qos": "LSR",
        "cpus": "2-3",
        "bind": "FullPCPUs",
        "exclusive": "PCPULevel",
        "numa": [{"node": 0, "amounts": {"cpu_milli": 500, "memory_bytes": 1 << 20}}],
        "memory_nodes": "0",
        "pools": [[0, 0], [1, 1]],
        "notes": ["one node would have been better"],
    }


def test_parts_that_cannot_be_read_are_left_out_and_said(directory: StateDirectory) -> None:
    content = state_content(STATE)
    del content["slots"][1]["spec"]["job_id"]
    content["policy"] = {"bind": "Tightly"}
    write_document(directory.path / "state.json", content)
    readable = replace(STATE, slots=STATE.slots[:1], policy=HostPolicy(), policy_number=0)
    assert directory.load("host-a") == readable
    assert ["policy.bind" in each for each in directory.damage] == [True, False]
    assert ["slots[1].spec.job_id" in each for each in directory.damage] == [False, True]


def test_a_document_without_identity_is_damaged(directory: StateDirectory) -> None:
    content = state_content(STATE)
    del content["instance_id"]
    write_document(directory.path / "state.json", content)
    assert directory.load("host-a").slots == ()
    assert "state.json is damaged (instance_id" in directory.damage[0]


def test_a_task_is_spelled_as_ever_and_comes_back() -> None:
    task = Task("t", KEY, "job", "digest", ("sh", "-c", "true"), 5, 6, cancelled=True, owner=OWNER)
    document = {
        "task_id": "t",
        "allocation_id": "a",
        "generation": 1,
        "job_id": "job",
        "digest": "digest",
        "argv": ["sh", "-c", "true"],
        "submit_time_ms": 5,
        "submit_number": 6,
        "cancelled": True,
        "fault": None,
        "ended_for": None,
        "operator_task": None,
        "registered": [],
        "memory_limit_bytes": 0,
        "first_quota_bytes": 0,
        "owner": OWNER,
    }
    assert task.to_dict() == document
    assert Task.from_dict(document).to_dict() == document
    assert Task.from_dict(document).key == KEY
    earlier = {name: value for name, value in document.items() if name != "ended_for"}
    assert Task.from_dict(earlier).to_dict() == document
    with_secret = {name: value for name, value in document.items() if name != "owner"}
    assert Task.from_dict(with_secret | {"job_secret_sha256": HASH}).owner == ""
    failed = Task.from_dict(document | {"fault": ["COMMAND_NOT_FOUND", "no sh", {"path": "sh"}]})
    assert failed.fault == TaskFault("COMMAND_NOT_FOUND", "no sh", {"path": "sh"})
    assert (failed.state, failed.settled.is_set()) == (TaskState.FAILED, True)
    with pytest.raises(InvalidArgument, match="allocation_id"):
        Task.from_dict({"task_id": "t"})


def test_nobody_else_reads_the_document(directory: StateDirectory) -> None:
    directory.save(STATE)
    assert stat.S_IMODE((directory.path / "state.json").stat().st_mode) == 0o600


def test_a_directory_belongs_to_one_executor(directory: StateDirectory) -> None:
    directory.save(STATE)
    with pytest.raises(ConfigurationError, match="belongs to executor host-a, not host-b"):
        directory.load("host-b")


def test_a_second_front_on_the_directory_is_refused(directory: StateDirectory) -> None:
    with pytest.raises(ConfigurationError, match="another task executor uses") as refused:
        StateDirectory.open(directory.path)
    assert refused.value.reason is Reason.STORE_IN_USE
    directory.close()
    StateDirectory.open(directory.path).close()


def test_a_directory_that_cannot_be_made_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="--state-dir"):
        StateDirectory.open(tmp_path / "file" / "state")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"version": 1, "sha256": "x", "cont', id="torn"),
        pytest.param(b'{"version": 1, "sha256": "x", "content": "{}"}', id="a wrong checksum"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[1, 2]", id="another shape"),
    ],
)
def test_a_damaged_document_is_kept_aside_and_said(
    directory: StateDirectory, content: bytes
) -> None:
    (directory.path / "state.json").write_bytes(content)
    assert directory.load("host-a").slots == ()
    assert "state.json is damaged" in directory.damage[0]
    assert (directory.path / "state.json.damaged").read_bytes() == content


@pytest.mark.parametrize("length", range(0, 260, 13))
def test_no_prefix_of_a_document_is_taken_for_it(directory: StateDirectory, length: int) -> None:
    directory.save(STATE)
    path = directory.path / "state.json"
    whole = path.read_bytes()
    assert length < len(whole)
    path.write_bytes(whole[:length])
    assert directory.load("host-a").instance_id != "instance"


def test_a_newer_format_is_refused_and_kept(directory: StateDirectory) -> None:
    path = directory.path / "state.json"
    path.write_text(json.dumps({"version": 99, "sha256": "", "content": "{}"}))
    with pytest.raises(ConfigurationError, match="newer version"):
        directory.load("host-a")
    assert path.exists()


def test_a_write_that_fails_leaves_the_old_document(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.save(STATE)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            directory.save(SavedState("host-a", "other"))
    assert directory.load("host-a") == STATE
    assert [p.name for p in directory.path.iterdir() if p.name.startswith(".")] == []


def test_what_was_saved_survives_a_power_cut(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskCalls(monkeypatch)
    for number in (1, 2):  # the first creates the file, the second replaces it
        disk.calls.clear()
        directory.save(replace(STATE, rm_epoch=number))
        disk.check_durable(directory.path / "state.json")


async def test_many_who_save_at_once_share_a_write(
    directory: StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    present = 0
    write = checkpoint.write_document

    def counted(path: Path, content: dict[str, object], mode: int = 0o600) -> None:
        nonlocal writes
        writes += 1
        write(path, content, mode)

    monkeypatch.setattr(checkpoint, "write_document", counted)
    saver = GroupCommit(lambda: partial(directory.save, SavedState("host-a", "instance", present)))

    async def change(number: int) -> None:
        nonlocal present
        present = max(present, number)
        await saver.commit()
        assert directory.load("").rm_epoch >= number

    await asyncio.gather(*(change(number) for number in range(1, 101)))
    assert writes <= 3
