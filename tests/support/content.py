"""Finds the fields of a service's messages that can have text or bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from finegrain.rpc.access import READERS, AccessTable

TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def answers_to_readers(module: Any, table: AccessTable) -> Iterator[Descriptor]:
    """Yields the answers of all methods that users, viewers or administrators may call. Methods
    that only administrators may call are left out.
    """
    for service in module.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            roles = table[f"/{service.full_name}/{method.name}"]
            if roles & READERS and not roles <= {"operator"}:
                yield method.output_type


def messages_within(roots: Iterable[Descriptor]) -> dict[str, Descriptor]:
    """Returns the messages and all messages inside them. The key is the name of the message."""
    found: dict[str, Descriptor] = {}
    left = list(roots)
    while left:
        message = left.pop()
        if message.full_name not in found and message.full_name.startswith("finegrain."):
            found[message.full_name] = message
            left += [each.message_type for each in message.fields if each.message_type]
    return {message.name: message for message in found.values()}


def texts_of(messages: Iterable[Descriptor]) -> dict[str, set[str]]:
    """Returns the names of the fields that can have text or bytes, by message."""
    return {
        message.name: names
        for message in messages
        if not message.GetOptions().map_entry
        if (names := {each.name for each in message.fields if _can_have_text(each)})
    }


def listed(table: dict[str, str]) -> dict[str, set[str]]:
    """Returns the field names of a table in which spaces separate them."""
    return {message: set(names.split()) for message, names in table.items()}


def _can_have_text(field: FieldDescriptor) -> bool:
    if field.message_type is None:
        return field.type in TEXTS
    # The keys of a map of numbers are names of resources, and not text.
    entry = field.message_type
    return bool(entry.GetOptions().map_entry) and entry.fields_by_name["value"].type in TEXTS
