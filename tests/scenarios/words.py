"""Parses one command line of a story."""

from __future__ import annotations


class Words:
    """A command line: its name, subjects and values."""

    def __init__(self, line: str) -> None:
        self.name, *words = line.split()
        self.subjects = [word for word in words if "=" not in word]
        self.values = dict(word.split("=", 1) for word in words if "=" in word)

    def flag(self, name: str) -> bool:
        found = name in self.subjects
        self.subjects = [word for word in self.subjects if word != name]
        return found

    def number(self, name: str, default: int = 0) -> int:
        return int(self.values.pop(name, default))

    def names(self, name: str) -> list[str]:
        return [word for word in self.values.pop(name, "").split(",") if word]

    def milliseconds(self, text: str) -> int:
        return int(text.removesuffix("s")) * 1_000

    def wait_timeout_ms(self) -> int | None:
        text = self.values.pop("timeout", "")
        return self.milliseconds(text) if text else None

    def expected_ms(self) -> int | None:
        text = self.values.pop("expected", "")
        return self.milliseconds(text) if text else None

    def time_limit_ms(self) -> int | None:
        text = self.values.pop("time_limit", "")
        return self.milliseconds(text) if text else None

    def job(self) -> str:
        return self.values.pop("job", "job")

    def job_or_operator(self) -> str | None:
        """Returns the job of a call; None: an administrator calls."""
        return None if self.flag("operator") else self.job()

    def slot(self) -> tuple[str, int]:
        """Returns a slot's allocation id and generation."""
        return self.values.pop("slot"), self.number("generation", 1)

    def extended(self) -> tuple[tuple[str, int], ...]:
        """Returns amounts of countable resources."""
        names = (("hugepages-2Mi", "huge"), ("license", "licenses"))
        return tuple((name, amount) for name, word in names if (amount := self.number(word)))

    def labels(self, name: str = "labels") -> tuple[tuple[str, str], ...]:
        pairs = (pair.split(":", 1) for pair in self.names(name))
        return tuple(sorted((key, value) for key, value in pairs))
