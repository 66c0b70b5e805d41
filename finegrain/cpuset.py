"""Implements sets of cpu numbers and NUMA node ids, and reads and writes the kernel's notations of
such sets.

The kernel writes lists (``0-3,8``) and hexadecimal masks in groups of 32 bits
(``00000001,0000000f``). A set can contain offline or missing cpus, because only detection knows
which cpus exist.

A set is one integer bit mask. So set operations and counting need no memory per member. Hosts with
thousands of cpus or with sparse node ids need no special code.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from finegrain.errors import InvalidArgument

MAX_ID: Final = 65_535
"""Highest accepted number.

The highest numbers in a kernel are cpu 8191 and node 1023. The limit protects the reader's memory
from a corrupt file with ``0-99999999999``.
"""

_LIST_ITEM: Final = re.compile(r"(\d+)(?:-(\d+)(?::(\d+)(?:/(\d+))?)?)?", re.ASCII)
_MASK_GROUP: Final = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)
_NULL: Final = "(null)"


class CpuSet:
    """An immutable set of cpu numbers, iterated in ascending order.

    >>> spare = CpuSet.parse("0-3,8") - CpuSet.of(2)
    >>> str(spare), len(spare), spare.to_mask()
    ('0-1,3,8', 4, '10b')
    """

    __slots__ = ("_bits",)
    _bits: int

    def __init__(self, members: Iterable[int] = ()) -> None:
        bits = 0
        for member in members:
            bits |= 1 << _checked(member)
        # Set the attribute through `object`, because the `__setattr__` of this class always raises.
        object.__setattr__(self, "_bits", bits)

    @classmethod
    def of(cls, *members: int) -> "CpuSet":
        """Returns the set of the given numbers."""
        return cls(members)

    @classmethod
    def from_bits(cls, bits: int) -> "CpuSet":
        """Returns the set whose members are the positions of the one-bits of ``bits``.

        Raises:
            InvalidArgument: ``bits`` is negative or has a bit above `MAX_ID`.
        """
        if bits < 0 or bits.bit_length() > MAX_ID + 1:
            raise InvalidArgument("cpu mask", hex(bits), f"bits 0 to {MAX_ID}")
        # Do not call `__init__`, which adds members one by one, because all set operations call
        # this method.
        made = cls.__new__(cls)
        object.__setattr__(made, "_bits", bits)
        return made

    @classmethod
    def parse(cls, text: str, field: str = "cpus") -> "CpuSet":
        """Reads the kernel's list notation; ``field`` names the source in the error.

        The method accepts all forms that kernels and tools print. Items can be unsorted, can
        overlap, and can have blanks around them. An item can have a stride: ``0-62:2`` is every
        second number, and ``0-15:2/8`` is the first two of every eight numbers. The text can be
        empty. For an empty set, kernels print ``(null)`` padded with blanks in ``nohz_full``.

        Raises:
            InvalidArgument: the text has any other form.
        """
        text = text.strip().rstrip("\0")
        if not text or text == _NULL:
            return cls.from_bits(0)
        bits = 0
        for item in text.split(","):
            match = _LIST_ITEM.fullmatch(item.strip())
            if match is None:
                raise InvalidArgument(field, text, "numbers and ranges, such as 0-3,8")
            bits |= _item_bits(match, text, field)
        return cls.from_bits(bits)

    @classmethod
    def parse_mask(cls, text: str, field: str = "cpus") -> "CpuSet":
        """Reads a hexadecimal mask: groups of 32 bits, most significant first, joined by commas.

        The first group can have fewer digits, and groups can be zero. An empty text is the empty
        set.

        Raises:
            InvalidArgument: the text has any other form.
        """
        text = text.strip().rstrip("\0")
        if not text or text == _NULL:
            return cls.from_bits(0)
        groups = text.removeprefix("0x").split(",")
        bits = 0
        for group in groups:
            # A single group can be longer, because some tools print masks without commas.
            if not _MASK_GROUP.fullmatch(group) and (len(groups) > 1 or not _is_hex(group)):
                raise InvalidArgument(field, text, "a hexadecimal mask, such as 00000001,000000ff")
            bits = bits << 32 | int(group, 16)
        if bits.bit_length() > MAX_ID + 1:
            raise InvalidArgument(field, text, f"numbers up to {MAX_ID}")
        return cls.from_bits(bits)

    @property
    def bits(self) -> int:
        """The set as an integer. Bit n is 1 if n is a member."""
        return self._bits

    def to_mask(self) -> str:
        """Returns the kernel's hexadecimal notation, in groups of 32 bits."""
        digits = f"{self._bits:x}"
        # Cut groups from the right, so that only the first group can be short.
        groups = [digits[max(end - 8, 0) : end] for end in range(len(digits), 0, -8)]
        return ",".join(reversed(groups))

    def first(self, count: int) -> "CpuSet":
        """Returns the ``count`` lowest members, or all members if there are fewer."""
        bits, taken = self._bits, 0
        for _ in range(count):
            # Isolate the lowest one-bit. If no member is left, `bits` is 0, and so is the result.
            lowest = bits & -bits
            taken |= lowest
            bits ^= lowest
        return CpuSet.from_bits(taken)

    def min(self) -> int:
        """Returns the lowest member. Raises ValueError if the set is empty."""
        if not self._bits:
            raise ValueError("an empty set has no lowest member")
        return (self._bits & -self._bits).bit_length() - 1

    def max(self) -> int:
        """Returns the highest member. Raises ValueError if the set is empty."""
        if not self._bits:
            raise ValueError("an empty set has no highest member")
        return self._bits.bit_length() - 1

    def isdisjoint(self, other: "CpuSet") -> bool:
        return not self._bits & other._bits

    def issubset(self, other: "CpuSet") -> bool:
        return not self._bits & ~other._bits

    def __or__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet.from_bits(self._bits | other._bits)

    def __and__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet.from_bits(self._bits & other._bits)

    def __sub__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet.from_bits(self._bits & ~other._bits)

    def __xor__(self, other: "CpuSet") -> "CpuSet":
        return CpuSet.from_bits(self._bits ^ other._bits)

    def __le__(self, other: "CpuSet") -> bool:
        return self.issubset(other)

    def __lt__(self, other: "CpuSet") -> bool:
        return self.issubset(other) and self._bits != other._bits

    def __contains__(self, member: object) -> bool:
        return isinstance(member, int) and 0 <= member <= MAX_ID and bool(self._bits >> member & 1)

    def __iter__(self) -> Iterator[int]:
        bits = self._bits
        while bits:
            lowest = bits & -bits
            yield lowest.bit_length() - 1
            bits ^= lowest

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __eq__(self, other: object) -> bool:
        return self._bits == other._bits if isinstance(other, CpuSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._bits)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"CpuSet is immutable: cannot set {name}")

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return CpuSet.from_bits, (self._bits,)

    def __str__(self) -> str:
        """Returns the kernel's list notation, sorted and merged; empty for the empty set."""
        parts, bits, base = [], self._bits, 0
        while bits:
            skip = (bits & -bits).bit_length() - 1
            bits >>= skip
            start = base + skip
            # Adding 1 carries through the run of ones at the low end. The zero bit at which the
            # carry stops gives the length of the run.
            run = (~bits & (bits + 1)).bit_length() - 1
            parts.append(str(start) if run == 1 else f"{start}-{start + run - 1}")
            bits >>= run
            base = start + run
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"


NodeSet: TypeAlias = CpuSet
"""A set of NUMA node ids, which the kernel writes in the same notations as cpus."""

EMPTY: Final = CpuSet()


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """Returns the union of all sets."""
    bits = 0
    for each in sets:
        bits |= each.bits
    return CpuSet.from_bits(bits)


def _checked(member: int) -> int:
    if not 0 <= member <= MAX_ID:
        raise InvalidArgument("cpus", member, f"numbers from 0 to {MAX_ID}")
    return member


def _is_hex(text: str) -> bool:
    return re.fullmatch(r"[0-9a-fA-F]+", text, re.ASCII) is not None


def _item_bits(match: re.Match[str], text: str, field: str) -> int:
    """Returns the bits of one list item: ``start[-end[:used[/group]]]``."""
    # Twelve digits already exceed the limit, and int() rejects very long texts.
    numbers = [
        None if part is None else int(part.lstrip("0")[:12] or "0") for part in match.groups()
    ]
    start, end, used, group = numbers
    assert start is not None  # noqa: S101 - the pattern requires a start
    if end is None:
        end = start
    if end < start or end > MAX_ID:
        raise InvalidArgument(field, text, f"ascending ranges, with numbers up to {MAX_ID}")
    if used is None:
        return ((1 << (end - start + 1)) - 1) << start
    # Tools write "0-62:2" for a step of 2. The kernel writes the same set as "0-62:1/2".
    step, run = (used, 1) if group is None else (group, used)
    if not 1 <= run <= step:
        raise InvalidArgument(field, text, "a stride of at least 1")
    bits = 0
    # The last group is possibly shorter, because the range ends within it.
    for first in range(start, end + 1, step):
        bits |= ((1 << (min(first + run - 1, end) - first + 1)) - 1) << first
    return bits
