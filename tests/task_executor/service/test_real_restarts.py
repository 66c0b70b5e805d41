"""Real daemons are killed and started again: no running task is lost, and nothing unknown
remains.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from finegrain.errors import FailedPrecondition, NotFound, Reason
from finegrain.v1 import task_executor_pb2 as te
from finegrain.v1.slots_pb2 import SLOT_STATE_FREEING
from tests.support.journals import has_ended
from tests.support.patience import PATIENCE_S
from tests.task_executor.service.conftest import saved_tasks
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.scripted_rm import (
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

pytestmark = [pytest.mark.slow, pytest.mark.full]

TICKER = (
    "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; sleep 0.05; done; "
    "until [ -e $0 ]; do sleep 0.05; done; exit 7"
)
TICKS = b"".join(b"%d\n" % i for i in range(1, 61))


async def restarted(process: ExecutorProcess, rm: ScriptedRM) -> JobMaster:
    """Starts the executor again, and waits until it has registered."""
    before = len(rm.registrations)
    process.start()
    await eventually(
        lambda: len(rm.registrations) > before or process.exit_code is not None, "it registers"
    )
    assert process.exit_code is None, process.log
    return rm.job_master()


async def test_killing_the_front_loses_neither_task_nor_output_nor_exit_status(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    go = process.folder / "go"
    status = await real.submit("sh", "-c", TICKER, str(go))
    await eventually(lambda: b"3\n" in process.output("task"), "it ticks")
    process.kill()
    job_master = await restarted(process, rm)
    assert [s.allocation_id for s in rm.registered.report.slots] == ["slot"]
    assert rm.registered.instance_id == rm.registrations[0].instance_id
    again = await job_master.submit("sh", "-c", TICKER, str(go))
    assert (again.pid, again.state) == (status.pid, te.TASK_STATE_RUNNING)
    go.touch()
    seen = await job_master.watch()
    assert (seen.stdout, seen.exit.exit_code) == (TICKS, 7)


async def test_a_task_that_ended_while_the_front_was_away(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    await real.submit("sh", "-c", "echo here; sleep 0.2; echo there; exit 5")
    process.kill()
    await eventually(lambda: has_ended(process.state_dir / "helper", "task"), "it ends")
    job_master = await restarted(process, rm)
    seen = await job_master.watch()
    assert (seen.stdout, seen.exit.exit_code) == (b"here\nthere\n", 5)
    await rm.free(free())
    await eventually(lambda: not rm.slots(), "the slot is gone")


async def test_an_older_epoch_is_refused_after_a_restart(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    rm.rm_epoch, rm.register_again = 9, True
    await eventually(lambda: len(rm.registrations) == 2, "it registers with epoch 9")
    await eventually(lambda: rm.reports[-1].report.rm_epoch == 9, "it has taken the epoch in")
    process.kill()
    rm.rm_epoch = 3  # a restored database, say
    process.start()
    await eventually(lambda: len(rm.registrations) == 3, "it registers")
    assert rm.registered.report.rm_epoch == 9
    with pytest.raises(FailedPrecondition) as refused:
        await rm.allocate(allocation())
    assert refused.value.reason in (Reason.STALE_EPOCH, Reason.STALE_REGISTRATION)
    rm.rm_epoch = 10
    await eventually(
        lambda: rm.reports[-1].registration_number == rm.registration_number, "epoch 10 holds"
    )
    with pytest.raises(FailedPrecondition) as refused:
        await rm.allocate(allocation(), number=1, rm_epoch=9)
    assert refused.value.reason is Reason.STALE_EPOCH
    assert not (await rm.allocate(allocation(), number=1)).results[0].HasField("error")


async def test_killing_the_helper_loses_nothing(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    await real.submit("sh", "-c", TICKER, "/dev/null")
    helper = process.helper_pid()
    os.kill(helper, signal.SIGKILL)
    seen = await real.watch()
    assert (seen.stdout, seen.exit.exit_code) == (TICKS, 7)
    assert process.helper_pid() != helper
    await rm.allocate(allocation("second"))
    await rm.free(free(), free("second"))
    await eventually(lambda: not rm.slots(), "the slots are gone")


async def test_a_planned_stop_leaves_tasks_alone(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    status = await real.submit("sleep", "1000")
    assert await process.stop() == 0
    assert "tasks_continue" in process.log
    assert not (process.state_dir / "endpoint.json").exists()
    os.kill(status.pid, 0)
    job_master = await restarted(process, rm)
    await job_master.cancel()
    assert (await job_master.watch()).exit.cancelled


async def test_a_planned_stop_with_nothing_to_keep_ends_the_helper_and_forgets_no_task(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    await real.submit("sh", "-c", "echo done; exit 3")
    assert (await real.watch()).exit.exit_code == 3
    await rm.free(free())
    await eventually(lambda: not rm.slots(), "the slot is gone")
    assert await process.stop() == 0
    assert "tasks_continue" not in process.log
    await eventually(lambda: not process.has_helper(), "the helper has gone")
    assert not process.groups()
    seen = await (await restarted(process, rm)).watch()
    assert (seen.stdout, seen.exit.exit_code) == (b"done\n", 3)


async def test_a_stop_that_is_to_leave_nothing_behind(
    rm: ScriptedRM, process: ExecutorProcess
) -> None:
    process.start(stop_tasks_on_exit=True)
    await eventually(lambda: rm.reports, "it reports")
    await rm.allocate(allocation())
    status = await rm.job_master().submit("sleep", "1000")
    assert await process.stop() == 0
    assert rm.ended() == {"slot": "TERMINATED"}
    with pytest.raises(ProcessLookupError):
        os.kill(status.pid, 0)
    await eventually(lambda: not process.has_helper(), "the helper has gone")
    assert not process.groups()
    assert not saved_tasks(process.state_dir)


async def test_a_stop_that_is_to_leave_nothing_behind_while_the_rm_is_gone(
    rm: ScriptedRM, process: ExecutorProcess
) -> None:
    process.start(stop_tasks_on_exit=True)
    await eventually(lambda: rm.reports, "it reports")
    await rm.allocate(allocation())
    status = await rm.job_master().submit("sleep", "1000")
    await rm.stop()
    assert await process.stop() == 0, process.log[-3000:]
    with pytest.raises(ProcessLookupError):
        os.kill(status.pid, 0)
    await eventually(lambda: not process.has_helper(), "the helper has gone")
    assert not process.groups()


async def test_slots_that_no_checkpoint_names_are_destroyed(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    status = await real.submit("sleep", "1000")
    process.kill()
    (process.state_dir / "state.json").write_bytes(b'{"version": 1, "cont')
    process.start()
    await eventually(lambda: len(rm.registrations) == 2, "it registers")
    assert not rm.registered.report.slots
    assert rm.registered.report.available == rm.registered.total
    with pytest.raises(ProcessLookupError):
        os.kill(status.pid, 0)
    assert "state.json is damaged" in process.log
    assert (process.state_dir / "state.json.damaged").exists()


async def test_a_slot_whose_group_vanished_is_told_as_broken(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation("kept"), allocation("gone"))
    process.kill()
    os.kill(process.helper_pid(), signal.SIGKILL)
    (process.state_dir / "helper/slots/gone.1.json").unlink()
    await restarted(process, rm)
    assert rm.ended() == {"gone": "SLOT_BROKEN"}
    assert [s.allocation_id for s in rm.registered.report.slots] == ["kept"]


async def test_freeing_goes_on_after_a_restart(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    await rm.allocate(allocation())
    await real.submit("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    await eventually(lambda: process.output("task"), "it ignores SIGTERM")
    answer = await rm.free(free(grace_ms=60_000))
    assert [slot.allocation_id for slot in answer.report.slots] == ["slot"]
    process.kill()
    await restarted(process, rm)
    assert [slot.state for slot in rm.registered.report.slots] == [SLOT_STATE_FREEING]
    await rm.free(free(grace_ms=0))
    await eventually(lambda: not rm.slots(), "the slot is gone long before its grace is over")


async def test_a_second_executor_on_the_same_state_directory(
    rm: ScriptedRM, real: JobMaster, process: ExecutorProcess
) -> None:
    second = ExecutorProcess(process.folder, process.manager)
    second.start()
    assert second.process is not None
    assert second.process.wait(PATIENCE_S) == 1
    assert "another task executor uses the state directory" in process.log
    await rm.allocate(allocation())


async def test_a_port_in_use_is_said_and_leaves_no_helper(process: ExecutorProcess) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process.start(address=f"127.0.0.1:{taken.getsockname()[1]}")
        assert process.process is not None
        assert process.process.wait(PATIENCE_S) == 1
    assert "in use by another process" in process.log
    await eventually(lambda: not process.has_helper(), "the helper has gone")


async def test_two_executors_side_by_side(rm: ScriptedRM, real: JobMaster, tmp_path: Path) -> None:
    other_rm = ScriptedRM()
    await other_rm.start()
    other = ExecutorProcess(tmp_path, other_rm.address)
    try:
        other.start()
        await eventually(lambda: other_rm.reports, "the other one reports")
        for manager in (rm, other_rm):
            await manager.allocate(allocation())
            job_master = manager.job_master()
            await job_master.submit("sh", "-c", "echo $FINEGRAIN_EXECUTOR_ID")
            seen = await job_master.watch()
            assert seen.stdout.decode().strip() == manager.registered.executor_id
        with pytest.raises(NotFound):
            await job_master.submit("true", task_id="t2", allocation_id="unknown")
    finally:
        other.clean_up()
        await other_rm.stop()
