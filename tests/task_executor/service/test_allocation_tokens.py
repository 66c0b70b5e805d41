"""Only a token signed by a resource manager of the cluster gives the right to use a slot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from finegrain.certificates.authority import Authority, utc_now
from finegrain.errors import NotFound, PermissionDenied, Reason
from finegrain.rpc.access import TOKEN_KEY
from finegrain.rpc.allocation_tokens import TokenChecker, TokenSigner
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1.identity_pb2 import AllocationClaims, AllocationToken
from tests.support.identities import CLUSTER, authority, caller, credentials, signed_by
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import (
    EXECUTOR_ID,
    OPERATOR,
    OTHER_OWNER,
    OWNER,
    SIGNER,
    JobMaster,
    ScriptedRM,
    allocation,
    eventually,
    free,
)

OF_SLOT = (EXECUTOR_ID, "job", OWNER, "slot", 1)
GOOD = SIGNER.token(*OF_SLOT)
CLAIMS = [
    AllocationClaims(
        executor_id=EXECUTOR_ID,
        job_id="job",
        owner=OWNER,
        allocation_id=name,
        generation=1,
    )
    for name in ("slot", "b", "c", "d", "e")
]
TOGETHER = SIGNER.tokens(CLAIMS)
OUTPUT = SIGNER.token(EXECUTOR_ID, "job", OWNER)


def signed_as(who: str, signing: Authority) -> bytes:
    """Returns a token that another certificate has signed."""
    return TokenSigner(OwnCertificate(signed_by(signing, who))).token(*OF_SLOT)


def changed(good: bytes = GOOD, **claims: object) -> bytes:
    """Returns a good token whose claims were changed after it was signed."""
    token = AllocationToken.FromString(good)
    inside = AllocationClaims.FromString(token.claims)
    for name, value in claims.items():
        setattr(inside, name, value)
    token.claims = inside.SerializeToString()
    return token.SerializeToString()


def with_path(path: bytes) -> bytes:
    """Returns a token that was signed together with others, with another path to the root."""
    token = AllocationToken.FromString(TOGETHER[0])
    token.path = path
    return token.SerializeToString()


def path_of(token: bytes) -> bytes:
    return AllocationToken.FromString(token).path


def inner_node() -> bytes:
    """Returns a token whose claims are two hashes from which the root was really computed."""
    token = AllocationToken.FromString(TOGETHER[0])
    hashes = sorted((sha256(b"\x00" + token.claims).digest(), token.path[:32]))
    token.claims, token.path = b"\x01" + hashes[0] + hashes[1], token.path[32:]
    return token.SerializeToString()


FORGED = {
    "nothing": b"",
    "noise": b"\xff" * 200,
    "too long": GOOD + b"\x00" * 4_000,
    "no signature": AllocationToken(
        claims=AllocationToken.FromString(GOOD).claims
    ).SerializeToString(),
    "signed by its owner": signed_as(OWNER, authority()),
    "signed by an executor": signed_as(f"executor/{EXECUTOR_ID}", authority()),
    "signed by an operator": signed_as(OPERATOR, authority()),
    "signed in another cluster": signed_as("rm", authority("other")),
    "signed by a false authority": signed_as("rm", Authority.create(CLUSTER, utc_now())),
    "another owner": changed(owner=OTHER_OWNER),
    "another slot": changed(allocation_id="theirs"),
    "another generation": changed(generation=2),
    "another slot, signed with others": changed(TOGETHER[0], allocation_id="theirs"),
    "another generation, signed with others": changed(TOGETHER[0], generation=2),
    "the path of another slot": with_path(path_of(TOGETHER[1])),
    "no path": with_path(b""),
    "a part of the path": with_path(path_of(TOGETHER[0])[:-32]),
    "a path with a hash too much": with_path(path_of(TOGETHER[0]) + bytes(32)),
    "a path that ends within a hash": with_path(path_of(TOGETHER[0])[:-1]),
    "a path of a token that was signed alone": AllocationToken(path=bytes(32)).SerializeToString()
    + GOOD,
    "hashes as claims": inner_node(),
}
REAL_BUT_OTHER = {
    "another executor": SIGNER.token("host-b", *OF_SLOT[1:]),
    "another slot": SIGNER.token(EXECUTOR_ID, "job", OWNER, "other", 1),
    "another slot, signed with this slot": TOGETHER[1],
    "an old generation": SIGNER.token(EXECUTOR_ID, "job", OWNER, "slot", 0),
    "the output of the job": OUTPUT,
    "another job": SIGNER.token(EXECUTOR_ID, "job-b", OWNER),
}


class WithoutToken(JobMaster):
    """A job master of an earlier version, which knows no tokens."""

    def metadata(self, request: Any) -> Any:
        return None


def master_with(executor: Executor, token: bytes, who: str = OWNER) -> JobMaster:
    return JobMaster(executor.front.address, who, token=token)


async def refused(call: Awaitable[object]) -> Reason:
    with pytest.raises(PermissionDenied) as error:
        await call
    return error.value.reason


@pytest.mark.parametrize("token", FORGED.values(), ids=FORGED)
async def test_a_forged_token_starts_no_task(
    rm: ScriptedRM, executor: Executor, token: bytes
) -> None:
    await rm.allocate(allocation(), allocation("theirs", job_id="job-b", owner=OTHER_OWNER))
    for who in (OWNER, OTHER_OWNER, OPERATOR):
        assert await refused(master_with(executor, token, who).submit("true")) is (
            Reason.TOKEN_REFUSED
        )
    assert not executor.helper.specs


@pytest.mark.parametrize("token", REAL_BUT_OTHER.values(), ids=REAL_BUT_OTHER)
async def test_a_token_for_something_else_starts_and_ends_no_task(
    rm: ScriptedRM, executor: Executor, token: bytes
) -> None:
    await rm.allocate(allocation())
    other = master_with(executor, token)
    assert await refused(other.submit("true")) is Reason.TOKEN_REFUSED
    await executor.job_master.submit("sleep", "1000")
    for call in (other.cancel(), other.signal(9), other.write((0, b"", True))):
        assert await refused(call) is Reason.TOKEN_REFUSED
    assert executor.helper.specs.keys() == {"task"}


@pytest.mark.parametrize("count", [*range(1, 10), 33])
def test_each_of_many_tokens_with_one_signature_counts(count: int) -> None:
    claims = [
        AllocationClaims(
            executor_id=EXECUTOR_ID,
            job_id="job",
            owner=OWNER,
            allocation_id=f"slot-{number}",
            generation=number,
        )
        for number in range(count)
    ]
    tokens = SIGNER.tokens(claims)
    signatures = {AllocationToken.FromString(each).signature for each in tokens}
    assert len(signatures) == 1
    own = OwnCertificate(credentials(f"executor/{EXECUTOR_ID}"))
    checker = TokenChecker(EXECUTOR_ID, own, lambda _identity, _serial: False)
    for number, token in enumerate(tokens):
        shown = checker.shown(caller(OWNER), [(TOKEN_KEY, token)])
        assert shown.check_slot(f"slot-{number}", number) == OWNER


async def test_a_token_that_was_signed_with_others_starts_a_task(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation(), allocation("b"))
    await master_with(executor, TOGETHER[0]).submit("true")
    for forged in (FORGED["the path of another slot"], FORGED["hashes as claims"]):
        assert await refused(master_with(executor, forged).cancel()) is Reason.TOKEN_REFUSED
    await master_with(executor, TOGETHER[0]).cancel()


async def test_a_token_is_worth_nothing_with_another_certificate(
    rm: ScriptedRM, executor: Executor
) -> None:
    """This is also so with the certificate of an administrator, who may only watch and cancel."""
    await rm.allocate(allocation())
    for who in (OTHER_OWNER, OPERATOR):
        assert await refused(master_with(executor, GOOD, who).submit("true")) is Reason.NOT_OWNER
    assert not executor.helper.specs


async def test_without_a_token_the_owner_has_no_rights(rm: ScriptedRM, executor: Executor) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    bare = WithoutToken(executor.front.address)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: bare.submit("true"),
        bare.watch,
        bare.tasks,
        bare.cancel,
    ]
    for call in calls:
        assert await refused(call()) is Reason.TOKEN_REFUSED


async def test_a_token_for_the_output_reads_and_changes_nothing(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation(), allocation("b"))
    await executor.job_master.submit("true")
    executor.helper.write("task", b"some output")
    reader = master_with(executor, OUTPUT)
    assert [each.task_id for each in await reader.tasks()] == ["task"]
    assert await refused(reader.watch(holder="reader")) is Reason.TOKEN_REFUSED
    executor.helper.end("task")
    assert (await reader.watch()).stdout == b"some output"
    # The output is still kept some time after the end of the slot. Any token of the job reads it.
    await rm.free(free())
    for token in (OUTPUT, GOOD, SIGNER.token(EXECUTOR_ID, "job", OWNER, "b", 1)):
        assert (await master_with(executor, token).watch()).stdout == b"some output"
    stranger = master_with(executor, SIGNER.token(EXECUTOR_ID, "job-b", OTHER_OWNER), OTHER_OWNER)
    assert await refused(stranger.watch()) is Reason.TOKEN_REFUSED
    assert await refused(stranger.tasks()) is Reason.TOKEN_REFUSED


async def test_a_job_with_the_id_of_a_deleted_job_does_not_read_its_output(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await executor.job_master.submit("true")
    later = master_with(executor, SIGNER.token(EXECUTOR_ID, "job", OTHER_OWNER), OTHER_OWNER)
    assert await refused(later.watch()) is Reason.NOT_OWNER
    assert await refused(later.tasks()) is Reason.NOT_OWNER


async def test_a_token_ends_with_the_generation_of_its_slot(
    rm: ScriptedRM, executor: Executor
) -> None:
    await rm.allocate(allocation())
    await rm.free(free())
    with pytest.raises(NotFound):
        await master_with(executor, GOOD).submit("true")
    await rm.allocate(allocation(generation=2))
    later = master_with(executor, GOOD)
    assert await refused(later.submit("true", generation=2)) is Reason.TOKEN_REFUSED
    assert not executor.helper.specs


async def test_a_token_survives_a_restart_and_a_takeover(
    rm: ScriptedRM, executor: Executor
) -> None:
    """The certificate of the manager that signed the token may have been renewed, or have
    expired.
    """
    expired = TokenSigner(OwnCertificate(credentials("rm", life_s=-60))).token(*OF_SLOT)
    second = signed_as("rm", authority())
    await rm.allocate(allocation())
    await executor.crash()
    await executor.start()
    await eventually(lambda: len(rm.registrations) == 2, "it registers again")
    for number, token in enumerate((GOOD, TOGETHER[0], expired, second)):
        await master_with(executor, token).submit("true", task_id=f"task-{number}")
    assert len(executor.helper.specs) == 4


async def test_the_authority_that_was_removed_vouches_for_nothing(
    rm: ScriptedRM, executor: Executor
) -> None:
    """While both authorities are trusted, tokens of both are accepted."""
    await rm.allocate(allocation())
    new = Authority.create(CLUSTER, utc_now())
    both = authority().certificate_pem + new.certificate_pem
    tokens = {"old": GOOD, "together": TOGETHER[0], "new": signed_as("rm", new)}
    present = executor.front.own.credentials
    # The job master keeps its certificate of the old authority. Only tokens are tested here.
    executor.front._trust._own = None

    def trusts(pem: bytes) -> None:
        executor.front.own._credentials = replace(present, authorities=pem.decode())

    assert await refused(master_with(executor, tokens["new"]).submit("true")) is (
        Reason.TOKEN_REFUSED
    )
    trusts(both)
    for name, token in tokens.items():
        await master_with(executor, token).submit("true", task_id=name)
    trusts(new.certificate_pem)
    for old in (GOOD, TOGETHER[0]):
        assert await refused(master_with(executor, old).submit("true")) is Reason.TOKEN_REFUSED
    await master_with(executor, tokens["new"]).submit("true", task_id="later")


async def test_the_tokens_of_a_denied_manager_end_at_once(
    rm: ScriptedRM, executor: Executor
) -> None:
    stolen = OwnCertificate(signed_by(authority(), "rm"))
    tokens = [TokenSigner(stolen).token(*OF_SLOT), TokenSigner(stolen).tokens(CLAIMS)[0]]
    await rm.allocate(allocation())
    for number, token in enumerate(tokens):
        await master_with(executor, token).submit("true", task_id=f"task-{number}")
    rm.denied.number = 1
    rm.denied.subjects.append(serial_of(stolen))
    await eventually(lambda: executor.front.keeper.denials.number == 1, "it knows the denial")
    for token in tokens:
        call = master_with(executor, token).cancel("task-0")
        assert await refused(call) is Reason.TOKEN_REFUSED
    await master_with(executor, GOOD).cancel("task-0")


def serial_of(certificate: OwnCertificate) -> str:
    from finegrain.certificates.reading import read_certificate

    return read_certificate(certificate.credentials.certificate.encode()).serial
