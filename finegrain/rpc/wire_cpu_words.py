"""Converts the words of CPU policies from and to the enum numbers of cpus.proto."""

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
from finegrain.neighbors import Level
from finegrain.rpc.mapping.fields import members_of, numbers_of
from finegrain.v1 import cpus_pb2 as pb

WordT = TypeVar("WordT", bound=StrEnum)


class Words(Generic[WordT]):
    """The words of one enum and their numbers. `unspecified` is the word for number 0."""

    def __init__(self, kind: type[WordT], wrapper: Any, unspecified: WordT | None = None) -> None:
        self._name = wrapper.DESCRIPTOR.name
        self._unspecified = unspecified
        self._numbers = numbers_of(kind, wrapper.DESCRIPTOR)
        self._words = members_of(kind, wrapper.DESCRIPTOR)

    def number(self, word: WordT) -> Any:
        """Returns the protocol's number of a word."""
        return self._numbers[word]

    def optional_word(self, number: int, field: str) -> WordT | None:
        """Returns the word of a number; None: the number is 0, unspecified.

        Raises:
            InvalidArgument: this version does not know the number.
        """
        if number == 0:
            return None
        word = self._words.get(number)
        if word is None:
            raise InvalidArgument(field, number, f"a known {self._name}")
        return word

    def word(self, number: int, field: str) -> WordT:
        """Returns the word of a number, with `unspecified` for 0.

        Raises:
            InvalidArgument: this version does not know the number. Or the number is 0, and there is
                no word `unspecified`.
        """
        word = self.optional_word(number, field) or self._unspecified
        if word is None:
            raise InvalidArgument(field, "absent", f"a {self._name}")
        return word


QOS = Words(QosClass, pb.QosClass, QosClass.LS)
BIND = Words(BindPolicy, pb.BindPolicy, BindPolicy.DEFAULT)
EXCLUSIVE = Words(ExclusivePolicy, pb.ExclusivePolicy, ExclusivePolicy.DEFAULT)
NUMA = Words(NumaPolicy, pb.NumaPolicy, NumaPolicy.DEFAULT)
LEVEL = Words(Level, pb.NeighborLevel, Level.HOST)
STRATEGY = Words(NumaStrategy, pb.NumaStrategy)
HOST_BIND = Words(HostBindPolicy, pb.HostBindPolicy)
