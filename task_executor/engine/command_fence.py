"""Decides which commands of the resource manager (RM) the executor can still execute (fencing).

Each command contains three numbers. Its epoch must not be lower than the highest known epoch. Its
registration number must be the number of the present registration. Its command number must be the
next number: the commands of an epoch and a registration are numbered 1, 2, 3 without gaps. The
caller must make a higher epoch durable before it calls `admit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from finegrain.errors import FailedPrecondition, Reason

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class CommandNumbers:
    """The numbers that a command contains, and a digest of its whole content."""

    rm_epoch: int
    registration_number: int
    command_number: int
    digest: str


@dataclass
class CommandFence(Generic[Answer]):
    """Admits each command once. At most one command is in progress at a time."""

    rm_epoch: int = 0  # the highest known epoch
    registration_number: int = 0  # number of the present registration; 0 if not registered
    command_number: int = 0  # number of the last command whose effects are in the slot table
    _last_digest: str = ""
    _last_answer: Answer | None = None

    def raise_epoch(self, rm_epoch: int) -> None:
        """Accepts a higher epoch, after which commands are numbered from 1 again.

        A lower or equal epoch has no effect.
        """
        if rm_epoch > self.rm_epoch:
            self.rm_epoch = rm_epoch
            self._restart_numbering()

    def register(self, rm_epoch: int, registration_number: int) -> None:
        """Records a new registration. From now on, commands of earlier registrations are rejected.

        Raises:
            FailedPrecondition: STALE_EPOCH. The response is from an RM that was replaced.
        """
        self.check_epoch(rm_epoch)
        self.raise_epoch(rm_epoch)
        if registration_number != self.registration_number:
            self.registration_number = registration_number
            self._restart_numbering()

    def unregister(self) -> None:
        """Rejects all commands until the next registration."""
        self.registration_number = 0
        self._restart_numbering()

    def check_epoch(self, rm_epoch: int) -> None:
        """Checks that an epoch is not lower than the highest known epoch.

        Raises:
            FailedPrecondition: STALE_EPOCH. The RM of the lower epoch was replaced.
        """
        if rm_epoch < self.rm_epoch:
            raise FailedPrecondition(
                f"rm_epoch is {rm_epoch}, but this executor already obeys epoch "
                f"{self.rm_epoch}; a newer resource manager leads, so the older one must stop",
                reason=Reason.STALE_EPOCH,
                details=self._details(rm_epoch=rm_epoch),
            )

    def admit(self, numbers: CommandNumbers) -> Answer | None:
        """Admits a new command, or returns the recorded answer of a repeated command.

        Returns:
            None if the command is new: the caller must execute it and then call `record`. For a
            repeated command, returns the recorded answer.

        Raises:
            FailedPrecondition: STALE_EPOCH, STALE_REGISTRATION or COMMAND_OUT_OF_ORDER.
        """
        self.check_epoch(numbers.rm_epoch)
        # Check the registration before the command number: each registration has its own numbering
        # of commands.
        if numbers.registration_number != self.registration_number:
            raise FailedPrecondition(
                f"registration_number is {numbers.registration_number}, expected "
                f"{self.registration_number or 'no command, because it is not registered yet'}; "
                "wait for the executor to register again",
                reason=Reason.STALE_REGISTRATION,
                details=self._details(asked=numbers.registration_number),
            )
        expected = self.command_number + 1
        # The leader of a new epoch numbers its commands from 1 again.
        if numbers.rm_epoch > self.rm_epoch:
            expected = 1
        # The RM repeats a command if it has not received the answer. Return the recorded answer,
        # because a second execution could carve or free slots again.
        elif numbers.command_number == self.command_number and self._repeats(numbers):
            return self._last_answer
        if numbers.command_number != expected:
            raise FailedPrecondition(
                f"command_number is {numbers.command_number}, expected {expected}"
                + (
                    " (the last one had different content)"
                    if numbers.command_number == self.command_number
                    else ""
                )
                + "; apply the reported state before sending more commands",
                reason=Reason.COMMAND_OUT_OF_ORDER,
                details=self._details(asked=numbers.command_number),
            )
        # Only an admitted command raises the epoch. A rejected command does not change the fence.
        self.raise_epoch(numbers.rm_epoch)
        return None

    def record(self, numbers: CommandNumbers, answer: Answer) -> None:
        """Stores the answer for retries of this command."""
        # If the executor has registered again while the command was running, the answer belongs to
        # an earlier registration. So do not store it.
        if self._is_current(numbers):
            self._last_digest = numbers.digest
            self._last_answer = answer

    def contained(self, numbers: CommandNumbers) -> None:
        """Records that the effects of this command are in the slot table.

        From now on, reports contain the number of the command. If the executor has registered again
        while the command ran, this method does nothing: the new registration has its own numbers.
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
