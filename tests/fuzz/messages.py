"""Makes requests of any message type from its descriptor: first plausible requests, then mutated
requests.

Plausible means that ids name existing objects, and that numbers are close to usual numbers. Only
such a request gets beyond the first check of a handler.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

DEPTH_MAX = 5
BYTES_MAX = 4 * 1024 * 1024 + 1024  # a little above what any server takes
EDGES = (0, 1, -1, 2, 63, 10**8, 10**8 + 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "a",
    "ä",
    "\x00",
    "../../etc/passwd",
    "%s%n",
    "'; --",
    "-1",
    "NaN",
    "\u202e",
    "x" * 300,
)
FLOAT_TYPES = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class Messages:
    """Makes random messages.

    Args:
        random_: the source of randomness.
        known: values by the name of a field ("job_id") or a part of it, of things that exist.
    """

    def __init__(self, random_: random.Random, known: Mapping[str, Sequence[Any]]) -> None:
        self._random = random_
        self.known = dict(known)

    def request(self, make: type[Message]) -> bytes:
        """Returns a serialized message: plausible, with wrong values, damaged, or very large."""
        kind = self._random.random()
        wrong = 0.0 if kind < 0.35 else 0.08
        message = make()
        self._fill(message, 0, wrong)
        if kind > 0.97:
            self._enlarge(message)
        data = message.SerializeToString()[:BYTES_MAX]
        return self._damaged(data) if 0.75 < kind < 0.9 else data

    def _fill(self, message: Any, depth: int, wrong: float) -> None:
        done: set[str] = set()
        for field in message.DESCRIPTOR.fields:
            group = field.containing_oneof.name if field.containing_oneof else ""
            if group in done or self._random.random() > (0.8 if depth < 3 else 0.4):
                continue
            done |= {group} - {""}
            self._set(message, field, depth, wrong)

    def _set(self, message: Any, field: FieldDescriptor, depth: int, wrong: float) -> None:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            keys, values = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(self._count(wrong)):
                key = self._scalar(keys, wrong)
                if values.message_type is not None:
                    self._fill(value[key], depth + 1, wrong)
                else:
                    value[key] = self._scalar(values, wrong)
        elif field.is_repeated:
            for _ in range(self._count(wrong)):
                if field.message_type is None:
                    value.append(self._scalar(field, wrong))
                elif depth < DEPTH_MAX:
                    self._fill(value.add(), depth + 1, wrong)
        elif field.message_type is not None:
            if depth < DEPTH_MAX:
                value.SetInParent()
                self._fill_one(value, depth + 1, wrong)
        else:
            setattr(message, field.name, self._scalar(field, wrong))

    def _fill_one(self, message: Any, depth: int, wrong: float) -> None:
        descriptor: Descriptor = message.DESCRIPTOR
        if descriptor.full_name in ("google.protobuf.Duration", "google.protobuf.Timestamp"):
            # A wait of days would only delay this run.
            message.seconds = self._pick((0, 1, 2) if self._random.random() > wrong else EDGES)
            return
        self._fill(message, depth, wrong)

    def _count(self, wrong: float) -> int:
        usual = self._random.random() > wrong
        return self._random.choice((0, 1, 1, 2, 3) if usual else (9, 70))

    def _scalar(self, field: FieldDescriptor, wrong: float) -> Any:
        is_wrong = self._random.random() < wrong
        if field.enum_type is not None:
            number = self._pick(field.enum_type.values).number
            return self._pick((-1, 99, 2**31 - 1)) if is_wrong else number
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return self._random.randbytes(self._pick((0, 1, 16, 300)))
            return self._pick(TEXTS) if is_wrong else self._pick(self._values(field) or ("a", "b"))
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return self._random.random() < 0.5
        if field.cpp_type in FLOAT_TYPES:
            return self._pick(FLOATS) if is_wrong else self._random.random()
        low, high = RANGES[field.cpp_type]
        usual = self._values(field) or (0, 1, 2, 3, 1000, 1 << 26)
        wanted = self._pick(EDGES) if is_wrong else self._pick(usual)
        return min(max(int(wanted), low), high)

    def _values(self, field: FieldDescriptor) -> Sequence[Any]:
        """Returns the known values for a field: of its name, or of the longest part of it."""
        is_text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
        parts = [name for name in self.known if name in field.name]
        for name in sorted(parts, key=len, reverse=True):
            found = [each for each in self.known[name] if isinstance(each, str) is is_text]
            if found:
                return found
        return ()

    def _enlarge(self, message: Any) -> None:
        """Repeats what a message has, until it is large."""
        lists = [
            (field, getattr(message, field.name))
            for field in message.DESCRIPTOR.fields
            if field.is_repeated and len(getattr(message, field.name))
        ]
        target = self._pick((70_000, 300_000, BYTES_MAX))
        for field, values in lists:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            while message.ByteSize() < target and len(values) < 200_000:
                values.extend(list(values)[:50_000])

    def _damaged(self, data: bytes) -> bytes:
        """Returns bytes that may be no message any more."""
        found = bytearray(data)
        for _ in range(self._pick((1, 1, 2, 8))):
            place = self._random.randrange(len(found) + 1)
            match self._random.randrange(5):
                case 0:
                    del found[place:]
                case 1:
                    found[place:place] = self._random.randbytes(self._pick((1, 4, 40)))
                case 2:
                    # A field with a length far beyond the end, or a group that never ends.
                    found[place:place] = self._pick(
                        (b"\x0a\xff\xff\xff\xff\x0f", b"\x0b", b"\xff" * 11)
                    )
                case 3 if found:
                    found[place % len(found)] ^= 1 << self._random.randrange(8)
                case _:
                    found[place:place] = found[:2_000]
        return bytes(found[:BYTES_MAX])

    def _pick(self, values: Sequence[Any]) -> Any:
        return self._random.choice(values)
