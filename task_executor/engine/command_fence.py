"""Fencing: decides which commands of the RM may still be executed.

Each command carries three numbers. Its epoch must not be lower than the highest one seen. Its
registration number must be that of the present registration. Within both, commands are numbered 1,
2, 3 without gaps. The caller must make a higher epoch durable before it calls `admit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from finegrain.errors import FailedPrecondition, Reason

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class CommandNumbers:
    """The numbers that a command carries, and a digest of its whole content."""

    rm_epoch: int
    registration_number: int
    command_number: int
    digest: str


@dataclass
class CommandFence(Generic[Answer]):
    """Admits each command once. At most one command is in progress at a time."""

    rm_epoch: int = 0  # the highest one seen
    registration_number: int = 0  # 0: not registered
    command_number: int = 0  # of the last command whose effects are in the slot table
    _last_digest: str = ""
    _last_answer: Answer | None = None

    def raise_epoch(self, rm_epoch: int) -> None:
        """Enters a higher epoch and restarts the numbering; an older or equal one has no effect."""
        if rm_epoch > self.rm_epoch:
            self.rm_epoch = rm_epoch
            self._restart_numbering()

    def register(self, rm_epoch: int, registration_number: int) -> None:
        """Records a new registration; commands of earlier registrations are rejected from now on.

        Raises:
            FailedPrecondition: STALE_EPOCH; the response is from an RM that has been replaced.
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
        """Rejects an epoch that is lower than the highest one seen: that RM has been replaced.

        Raises:
            FailedPrecondition: STALE_EPOCH.
        """
        if rm_epoch < self.rm_epoch:
            raise FailedPrecondition(
                f"rm_epoch is {rm_epoch}, but this executor has seen {self.rm_epoch}; a newer "
                "resource manager leads; the older one must stop",
                reason=Reason.STALE_EPOCH,
                details=self._details(rm_epoch=rm_epoch),
            )

    def admit(self, numbers: CommandNumbers) -> Answer | None:
        """Admits a new command, or returns the recorded answer if the command is a repetition.

        Returns:
            None: the caller must execute the command and then call `record`. Otherwise the answer
                that was recorded for the same command.

        Raises:
            FailedPrecondition: STALE_EPOCH, STALE_REGISTRATION or COMMAND_OUT_OF_ORDER.
        """
        self.check_epoch(numbers.rm_epoch)
        # Registration before command number: each registration starts its own numbering, so the
        # number of a command means nothing without it.
        if numbers.registration_number != self.registration_number:
            raise FailedPrecondition(
                f"registration_number is {numbers.registration_number}, expected "
                f"{self.registration_number or 'none: not registered yet'}; "
                "wait for the executor to register again",
                reason=Reason.STALE_REGISTRATION,
                details=self._details(asked=numbers.registration_number),
            )
        expected = self.command_number + 1
        # The leader of a new epoch numbers its commands from 1, whatever the earlier leader had
        # reached.
        if numbers.rm_epoch > self.rm_epoch:
            expected = 1
        # The answer of the first attempt was lost on its way. Executing the command again could
        # carve or free a second time, so the recorded answer is repeated.
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
        # Only an admitted command raises the epoch. A rejected one leaves the fence as it was.
        self.raise_epoch(numbers.rm_epoch)
        return None

    def record(self, numbers: CommandNumbers, answer: Answer) -> None:
        """Stores the answer for retries of this command."""
        # The executor may have registered again while the command was running. Its answer then
        # belongs to a numbering that no longer exists.
        if self._is_current(numbers):
            self._last_digest = numbers.digest
            self._last_answer = answer

    def contained(self, numbers: CommandNumbers) -> None:
        """Records that the effects of this command are in the slot table.

        Reports carry its number from now on. A command may outlive its registration while it carves
        slots; it must not change the numbering of the next registration.
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
