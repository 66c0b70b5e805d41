"""The executor rejects denied identities: at once, and also after a restart."""

from __future__ import annotations

import asyncio

import pytest

from finegrain.certificates.reading import read_certificate
from finegrain.errors import FinegrainError, Reason
from finegrain.v1 import resource_manager_pb2
from tests.support.identities import credentials
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import (
    EXECUTOR_ID,
    OTHER_OWNER,
    OWNER,
    SIGNER,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
)


async def deny(rm: ScriptedRM, executor: Executor, number: int, *subjects: str) -> None:
    rm.denied = resource_manager_pb2.DeniedIdentities(number=number, subjects=subjects)
    await eventually(lambda: executor.front.keeper.denials.number == number, "it is told")


async def refusal(master: JobMaster) -> FinegrainError:
    with pytest.raises(FinegrainError) as caught:
        await master.tasks()
    return caught.value


async def test_a_denied_user_is_refused_until_it_is_allowed_again(
    rm: ScriptedRM, executor: Executor
) -> None:
    await deny(rm, executor, 1, OWNER)
    assert (await refusal(executor.job_master)).reason is Reason.CERTIFICATE_DENIED
    token = SIGNER.token(EXECUTOR_ID, "job", OTHER_OWNER)
    assert await JobMaster(executor.front.address, OTHER_OWNER, token=token).tasks() == []
    await deny(rm, executor, 2)
    assert await executor.job_master.tasks() == []


async def test_one_certificate_of_a_user_can_be_denied(rm: ScriptedRM, executor: Executor) -> None:
    serial = read_certificate(credentials(OWNER).certificate.encode()).serial
    await deny(rm, executor, 1, serial)
    assert (await refusal(executor.job_master)).reason is Reason.CERTIFICATE_DENIED


async def test_the_list_is_sent_once(rm: ScriptedRM, executor: Executor) -> None:
    await deny(rm, executor, 1, OTHER_OWNER)
    before = len(rm.reports)
    await eventually(lambda: len(rm.reports) > before + 1, "it reports again")
    assert rm.reports[-1].denied_number == 1


async def test_a_stream_of_a_denied_user_ends(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("sleep", "1000")
    watching = asyncio.create_task(executor.job_master.watch())
    others = asyncio.create_task(JobMaster(executor.front.address, "operator/ann").watch())
    await eventually(lambda: executor.front._server.live_streams == 2, "they watch")
    await deny(rm, executor, 1, OWNER)
    with pytest.raises(FinegrainError) as caught:
        await watching
    assert caught.value.reason is Reason.CERTIFICATE_DENIED
    assert not others.done()
    executor.helper.end("task", 0)
    assert (await others).exit.exit_code == 0


async def test_a_restarted_executor_remembers_without_a_manager(
    rm: ScriptedRM, executor: Executor
) -> None:
    await deny(rm, executor, 1, OWNER)
    saved = executor.folder / "state/state.json"
    await eventually(lambda: OWNER in saved.read_text(), "it is saved")
    await rm.stop()
    await executor.crash()
    await executor.start()
    assert (await refusal(executor.job_master)).reason is Reason.CERTIFICATE_DENIED


async def test_a_registration_replaces_the_list(rm: ScriptedRM, executor: Executor) -> None:
    await deny(rm, executor, 1, OWNER)
    rm.denied = resource_manager_pb2.DeniedIdentities()
    rm.register_again = True
    await eventually(lambda: executor.front.keeper.denials.number == 0, "it registers again")
    assert await executor.job_master.tasks() == []
