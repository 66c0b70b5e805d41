"""The vocabularies of CPU orchestration as numbers of cpus.proto.

Decides which number stands for which word, and which word not saying one stands for. Refuses
numbers of a newer version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, TypeVar

from finegrain.cpu_policy import (
    BindPolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.errors import InvalidArgument
from finegrain.v1 import cpus_pb2 as pb

WordT = TypeVar("WordT", bound=StrEnum)


class Words(Generic[WordT]):
    """One vocabulary on the wire. `unsaid` stands for the number 0."""

    def __init__(
        self, kind: type[WordT], wrapper: Any, prefix: str, unsaid: WordT | None = None
    ) -> None:
        self._name = prefix.title().replace("_", "")
        self._unsaid = unsaid
        self._numbers: dict[WordT, int] = {
            each: wrapper.Value(f"{prefix}_{each.name}")
            for each in kind
            if f"{prefix}_{each.name}" in wrapper.keys()  # noqa: SIM118  it is no mapping
        }
        self._words = {number: each for each, number in self._numbers.items()}

    def number(self, word: WordT | None) -> Any:
        """The protocol's number; 0 for what is not said."""
        return 0 if word is None else self._numbers.get(word, 0)

    def said(self, number: int, field: str) -> WordT | None:
        """The word; None: it is not said.

        Raises:
            InvalidArgument: a number that this version does not know.
        """
        if number == 0:
            return None
        word = self._words.get(number)
        if word is None:
            raise InvalidArgument(field, number, f"a known {self._name}")
        return word

    def word(self, number: int, field: str) -> WordT:
        """The word, where not saying it means one, too.

        Raises:
            InvalidArgument: likewise.
        """
        word = self.said(number, field) or self._unsaid
        if word is None:
            raise InvalidArgument(field, "absent", f"a {self._name}")
        return word


QOS = Words(QosClass, pb.QosClass, "QOS_CLASS", QosClass.LS)
BIND = Words(BindPolicy, pb.BindPolicy, "BIND_POLICY", BindPolicy.DEFAULT)
EXCLUSIVE = Words(ExclusivePolicy, pb.ExclusivePolicy, "EXCLUSIVE_POLICY", ExclusivePolicy.DEFAULT)
NUMA = Words(NumaPolicy, pb.NumaPolicy, "NUMA_POLICY", NumaPolicy.DEFAULT)
STRATEGY = Words(NumaStrategy, pb.NumaStrategy, "NUMA_STRATEGY")
HOST_BIND = Words(HostBindPolicy, pb.HostBindPolicy, "HOST_BIND_POLICY")
