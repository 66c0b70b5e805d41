"""Which of the RM's commands may still change anything here.

Decides by three numbers alone: the epoch never falls, a command speaks to the present registration,
and commands are numbered strictly +1 within both. Refuses to know what a command does. The shell
makes a higher epoch durable *before* it calls `admit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from finegrain.errors import FailedPrecondition, Reason

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class CommandNumbers:
    """What a command carries, and a digest of its whole content."""

    rm_epoch: int
    registration_number: int
    command_number: int
    digest: str


@dataclass
class CommandFence(Generic[Answer]):
    """Admits each command once; at most one is under way."""

    rm_epoch: int = 0  # highest seen
    registration_number: int = 0  # 0: not registered
    command_number: int = 0  # last one whose effects are contained in the table
    _last_digest: str = ""
    _last_answer: Answer | None = None

    def raise_epoch(self, rm_epoch: int) -> None:
        """A higher epoch begins its own numbering; a lower one changes nothing."""
        if rm_epoch > self.rm_epoch:
            self.rm_epoch = rm_epoch
            self._restart_numbering()

    def register(self, rm_epoch: int, registration_number: int) -> None:
        """A registration was answered: commands of earlier ones are over.

        Raises:
            FailedPrecondition: the answer comes from an epoch that is over.
        """
        self.check_epoch(rm_epoch)
        self.raise_epoch(rm_epoch)
        if registration_number != self.registration_number:
            self.registration_number = registration_number
            self._restart_numbering()

    def unregister(self) -> None:
        """No command is valid until the next registration."""
        self.registration_number = 0
        self._restart_numbering()

    def check_epoch(self, rm_epoch: int) -> None:
        """Refuses an incarnation of the RM that has been replaced.

        Raises:
            FailedPrecondition: STALE_EPOCH.
        """
        if rm_epoch < self.rm_epoch:
            raise FailedPrecondition(
                f"rm_epoch is {rm_epoch}, but this executor has seen {self.rm_epoch}; "
                "a newer resource manager is in charge, step down",
                reason=Reason.STALE_EPOCH,
                details=self._details(rm_epoch=rm_epoch),
            )

    def admit(self, numbers: CommandNumbers) -> Answer | None:
        """None: carry it out and `record`. Otherwise the answer that was recorded for it.

        Raises:
            FailedPrecondition: STALE_EPOCH, STALE_REGISTRATION or COMMAND_OUT_OF_ORDER.
        """
        self.check_epoch(numbers.rm_epoch)
        if numbers.registration_number != self.registration_number:
            raise FailedPrecondition(
                f"registration_number is {numbers.registration_number}, expected "
                f"{self.registration_number or 'none: not registered yet'}; "
                "wait for the executor to register again",
                reason=Reason.STALE_REGISTRATION,
                details=self._details(asked=numbers.registration_number),
            )
        expected = self.command_number + 1
        if numbers.rm_epoch > self.rm_epoch:
            expected = 1
        elif numbers.command_number == self.command_number and self._repeats(numbers):
            return self._last_answer
        if numbers.command_number != expected:
            raise FailedPrecondition(
                f"command_number is {numbers.command_number}, expected {expected}"
                + (
                    " (the last one came with other content)"
                    if numbers.command_number == self.command_number
                    else ""
                )
                + "; take in the reported state before commanding again",
                reason=Reason.COMMAND_OUT_OF_ORDER,
                details=self._details(asked=numbers.command_number),
            )
        self.raise_epoch(numbers.rm_epoch)
        return None

    def record(self, numbers: CommandNumbers, answer: Answer) -> None:
        """The answer that a retry of this command gets."""
        if self._is_current(numbers):
            self._last_digest = numbers.digest
            self._last_answer = answer

    def contained(self, numbers: CommandNumbers) -> None:
        """The effects of this command are in the table: states from now on say so.

        A command may outlive its registration while it carves; the numbering of the next one is
        none of its business.
        """
        if self._is_current(numbers):
            self.command_number = numbers.command_number

    def _is_current(self, numbers: CommandNumbers) -> bool:
        return (numbers.rm_epoch, numbers.registration_number) == (
            self.rm_epoch,
            self.registration_number,
        )

    def _repeats(self, numbers: CommandNumbers) -> bool:
        return self._last_answer is not None and numbers.digest == self._last_digest

    def _restart_numbering(self) -> None:
        self.command_number = 0
        self._last_digest, self._last_answer = "", None

    def _details(self, **asked: int) -> dict[str, int]:
        return {
            "known_rm_epoch": self.rm_epoch,
            "known_registration_number": self.registration_number,
            "known_command_number": self.command_number,
            **asked,
        }
