"""Whether a command of the resource manager is current depends on its epoch, its registration and
its number, and never on time.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from finegrain.errors import FailedPrecondition, Reason
from task_executor.engine.command_fence import CommandFence, CommandNumbers
from tests.support.properties import examples


def numbers(
    epoch: int = 5, registration: int = 2, command: int = 1, digest: str = "x"
) -> CommandNumbers:
    return CommandNumbers(epoch, registration, command, digest)


def fence() -> CommandFence[str]:
    made: CommandFence[str] = CommandFence()
    made.register(5, 2)
    return made


def carry_out(made: CommandFence[str], command: CommandNumbers, answer: str = "done") -> str:
    recorded = made.admit(command)
    if recorded is not None:
        return recorded
    made.contained(command)
    made.record(command, answer)
    return answer


def refused(made: CommandFence[str], command: CommandNumbers) -> Reason:
    with pytest.raises(FailedPrecondition) as error:
        made.admit(command)
    assert error.value.details["known_rm_epoch"] == str(made.rm_epoch)
    return error.value.reason


def test_commands_count_up_by_one() -> None:
    made = fence()
    for command in (1, 2, 3):
        assert carry_out(made, numbers(command=command)) == "done"
    assert made.command_number == 3


def test_a_retry_gets_the_recorded_answer_and_changes_nothing() -> None:
    made = fence()
    carry_out(made, numbers(), "first")
    assert carry_out(made, numbers(), "second") == "first"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        pytest.param(numbers(command=3), Reason.COMMAND_OUT_OF_ORDER, id="a gap"),
        pytest.param(numbers(command=0), Reason.COMMAND_OUT_OF_ORDER, id="an older one"),
        pytest.param(numbers(digest="y"), Reason.COMMAND_OUT_OF_ORDER, id="other content"),
        pytest.param(numbers(epoch=4), Reason.STALE_EPOCH, id="an older epoch"),
        pytest.param(
            numbers(registration=1), Reason.STALE_REGISTRATION, id="an older registration"
        ),
        pytest.param(
            numbers(registration=3), Reason.STALE_REGISTRATION, id="a coming registration"
        ),
    ],
)
def test_what_is_refused(command: CommandNumbers, reason: Reason) -> None:
    made = fence()
    carry_out(made, numbers())
    assert refused(made, command) is reason
    assert carry_out(made, numbers(command=2)) == "done"


def test_nothing_is_admitted_before_a_registration() -> None:
    made: CommandFence[str] = CommandFence()
    assert refused(made, numbers()) is Reason.STALE_REGISTRATION


def test_a_higher_epoch_begins_its_own_numbering() -> None:
    made = fence()
    carry_out(made, numbers())
    assert refused(made, numbers(epoch=6, command=2)) is Reason.COMMAND_OUT_OF_ORDER
    assert carry_out(made, numbers(epoch=6, command=1)) == "done"
    assert refused(made, numbers(epoch=5, command=2)) is Reason.STALE_EPOCH


def test_a_new_registration_ends_the_numbering_of_the_old() -> None:
    made = fence()
    carry_out(made, numbers())
    made.register(5, 3)
    assert refused(made, numbers(command=2)) is Reason.STALE_REGISTRATION
    assert carry_out(made, numbers(registration=3)) == "done"


def test_a_registration_of_an_older_epoch_is_refused() -> None:
    with pytest.raises(FailedPrecondition) as error:
        fence().register(4, 3)
    assert error.value.reason is Reason.STALE_EPOCH


def test_a_command_that_outlives_its_registration_leaves_the_next_numbering_alone() -> None:
    fence: CommandFence[str] = CommandFence()
    fence.register(1, 1)
    slow = numbers(1, 1, 1, "slow")
    assert fence.admit(slow) is None
    fence.register(1, 2)
    fence.contained(slow)
    fence.record(slow, "late")
    assert fence.command_number == 0
    assert fence.admit(numbers(1, 2, 1, "next")) is None


class Fence(RuleBasedStateMachine):
    """Commands, repeated commands and late commands arrive in any order: each takes effect at most
    once, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fence: CommandFence[str] = CommandFence()
        self.effects: list[tuple[int, int, int]] = []

    @rule(epoch=st.integers(1, 4), registration=st.integers(1, 4))
    def registers(self, epoch: int, registration: int) -> None:
        if epoch >= self.fence.rm_epoch and registration > self.fence.registration_number:
            self.fence.register(epoch, registration)

    @rule(
        epoch=st.integers(1, 4),
        registration=st.integers(1, 4),
        command=st.integers(0, 4),
        digest=st.sampled_from("xy"),
    )
    def commands(self, epoch: int, registration: int, command: int, digest: str) -> None:
        wanted = numbers(epoch, registration, command, digest)
        try:
            recorded = self.fence.admit(wanted)
        except FailedPrecondition:
            return
        identity = (epoch, registration, command)
        if recorded is not None:
            assert recorded == f"{identity} {digest}"
            return
        assert all(identity > earlier for earlier in self.effects if earlier[:2] == identity[:2])
        assert all(epoch >= earlier[0] for earlier in self.effects)
        assert identity not in self.effects
        self.effects.append(identity)
        self.fence.contained(wanted)
        self.fence.record(wanted, f"{identity} {digest}")


TestFence = Fence.TestCase
TestFence.settings = settings(max_examples=examples(60), stateful_step_count=40)
