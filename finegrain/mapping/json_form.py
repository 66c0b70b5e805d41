"""Converts dataclasses to JSON data and back.

Keys are the names of the fields. Enums are written by value, tuples as lists, times as RFC 3339 in
UTC ("Z"), and bytes as text (with replacements for undecodable bytes). Mappings are written as
objects, and so are tuples of (text, value) pairs. If a class does not follow these rules, the
`forms` of the `JsonCodec` contain a `JsonForm` for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import partial
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_origin

from finegrain.cpuset import CpuSet
from finegrain.mapping.fields import (
    Attribute,
    MappingError,
    attributes_of,
    is_mapped,
    item_of,
    pair_of,
)
from finegrain.mapping.json_data import (
    Reader,
    check_list,
    check_object,
    read_any,
    read_cpu_list,
    read_items,
    read_member,
    read_moment,
    read_pairs,
    read_plain,
    read_plain_items,
    read_plain_pairs,
    refuse_unknown,
    required,
)
from finegrain.mapping.source import Source

T = TypeVar("T")
PLAIN = (str, int, bool, float)
_AS_THEY_ARE = frozenset((*PLAIN, NoneType))


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The differences between the JSON form of one class and its fields.

    An attribute of type str contains names, separated by spaces.

    Attributes:
        omit: the fields that are left out. "nothing": no field. "none": fields that are None.
            "default": fields that have their default.
        always: fields that are always written, whatever `omit` says.
        names: JSON keys of attributes whose key is not their name.
        hidden: attributes that are never written. When data is read, they get their default.
        inline: attributes whose value is an object. The members of this object are written as
            members of the outer object.
        as_list: if true, a value is written as a list of its fields in order. If false, it is
            written as an object.
        ignore_unknown: if true, unknown keys are ignored even if the codec rejects unknown keys.
        write: a function that returns the JSON data of a value, instead of the rules above.
        read: a function of the data and its path, instead of the rules above. It returns the value
            or raises InvalidArgument.
    """

    omit: Literal["nothing", "none", "default"] = "nothing"
    always: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    hidden: str = ""
    inline: str = ""
    as_list: bool = False
    ignore_unknown: bool = False
    write: Callable[[Any], Any] | None = None
    read: Reader | None = None


class JsonCodec:
    """Writes and reads JSON data of dataclasses and their fields.

    Args:
        forms: the differences from the rules, by class.
        refuse_unknown: if true, unknown keys are an error. By default unknown keys are ignored. So
            an older program can read data of a newer program.
    """

    def __init__(
        self, forms: Mapping[type, JsonForm] | None = None, *, refuse_unknown: bool = False
    ) -> None:
        self._forms: dict[type, JsonForm] = {CpuSet: CPU_LIST, datetime: MOMENT, **(forms or {})}
        self._refuse_unknown = refuse_unknown
        self._writers: dict[Any, Callable[[Any], Any]] = {}
        self._readers: dict[Any, Reader] = {}

    def to_json(self, value: object) -> Any:
        """Returns JSON data: dicts, lists, texts, numbers, booleans and None."""
        kind = type(value)
        writer = self._writers.get(kind) or self._writer(kind)
        return writer(value)

    def from_json(self, kind: type[T], data: object, where: str = "") -> T:
        """Reads the data that `to_json` returned. Absent keys get the defaults of the fields.

        Args:
            kind: a dataclass, or any type that a field can have.
            data: the parsed JSON.
            where: path of the data, for errors; empty if the data is the whole document.

        Raises:
            InvalidArgument: a value is missing, unknown or of another type. The error names its
                path.
        """
        reader = self._readers.get(kind) or self._reader(kind)
        return cast("T", reader(data, where))

    # -- writing -----------------------------------------------------------------------------

    def _writer(self, hint: Any) -> Callable[[Any], Any]:
        """Returns the function that writes values of a type. Compiles it on first use."""
        found = self._writers.get(hint)
        if found is None:
            found = self._writers[hint] = self._make_writer(hint)
        return found

    def _make_writer(self, hint: Any) -> Callable[[Any], Any]:
        form = self._forms.get(hint) if isinstance(hint, type) else None
        if form is not None and form.write is not None:
            return form.write
        if is_mapped(hint):
            return self._compiled_writer(hint, form or JsonForm(hidden=getattr(hint, "HIDDEN", "")))
        # Test for pairs before lists: a tuple of pairs would also match as a list.
        if (pair := pair_of(hint)) is not None:
            return self._pairs_writer(*pair)
        if (item := item_of(hint)) is not None:
            write = self._writer(item)
            return list if item in PLAIN else lambda value: [write(each) for each in value]
        return self._runtime_writer(hint)

    def _runtime_writer(self, hint: Any) -> Callable[[Any], Any]:
        if hint is Any or hint is object or not isinstance(hint, type):
            return self.to_json  # chooses the writer by the type of each value
        if issubclass(hint, Enum):
            return lambda value: value.value
        if issubclass(hint, bytes):
            return lambda value: value.decode("utf-8", errors="replace")
        if issubclass(hint, Mapping):
            return self._pairs_writer(str, Any)
        if issubclass(hint, tuple | list | set | frozenset):
            return lambda value: [self.to_json(each) for each in value]
        return _same

    def _pairs_writer(self, key: Any, value: Any) -> Callable[[Any], Any]:
        if key is str and value in PLAIN:
            return dict
        write = self._writer(value)
        return lambda pairs: {
            str(name): each if type(each) in _AS_THEY_ARE else write(each)
            for name, each in dict(pairs).items()
        }

    def _compiled_writer(self, kind: type, form: JsonForm) -> Callable[[Any], Any]:
        source, hidden = Source(), form.hidden.split()
        shown = [each for each in attributes_of(kind).values() if each.name not in hidden]
        keys = {each.name: form.names.get(each.name, each.name) for each in shown}
        if form.as_list:
            items = ", ".join(self._written(source, each) for each in shown)
            return source.compile("write(value)", [f"return [{items}]"])
        # If no field is left out, use one dict literal. It is faster than one statement per field.
        if form.omit == "nothing":
            entries = (
                ("**" if each.name in form.inline.split() else f"{keys[each.name]!r}: ")
                + self._written(source, each)
                for each in shown
            )
            return source.compile("write(value)", [f"return {{{', '.join(entries)}}}"])
        body = ["data = {}"]
        for each in shown:
            if each.name in form.inline.split():
                body.append(f"data.update({self._written(source, each)})")
                continue
            # Leave out a field only if a reader can supply the value: None, or the default.
            may_lack = each.optional if form.omit == "none" else not each.required
            if may_lack and each.name not in form.always.split():
                # The test binds `item`, so that the next line does not have to read the attribute
                # again.
                item = f"item := value.{each.name}"
                test = f"({item}) is not None"
                test = test if form.omit == "none" else _differs(source, each, item)
                body.append(f"if {test}:")
                body.append(
                    f"    data[{keys[each.name]!r}] = {self._written(source, each, 'item')}"
                )
            else:
                body.append(f"data[{keys[each.name]!r}] = {self._written(source, each)}")
        return source.compile("write(value)", [*body, "return data"])

    def _written(self, source: Source, each: Attribute, name: str = "") -> str:
        """Returns the expression that writes one field.

        `name` is the variable that already has the field's value; empty: there is no such variable.
        """
        access = name or f"value.{each.name}"
        if each.hint in PLAIN:
            return access
        may_be_none = each.optional and not name
        item = "item" if may_be_none else access
        if isinstance(each.hint, type) and issubclass(each.hint, Enum):
            written = f"{item}._value_"  # `value` is a slow property
        else:
            written = f"{source.bind(self._writer(each.hint), 'write')}({item})"
        return f"None if (item := {access}) is None else {written}" if may_be_none else written

    # -- reading -----------------------------------------------------------------------------

    def _reader(self, hint: Any) -> Reader:
        """Returns the function that reads data of a type. Compiles it on first use."""
        found = self._readers.get(hint)
        if found is None:
            found = self._readers[hint] = self._make_reader(hint)
        return found

    def _make_reader(self, hint: Any) -> Reader:
        form = self._forms.get(hint) if isinstance(hint, type) else None
        if form is not None and form.read is not None:
            return form.read
        if is_mapped(hint):
            return self._compiled_reader(hint, form or JsonForm(hidden=getattr(hint, "HIDDEN", "")))
        # Test for pairs before lists: a tuple of pairs would also match as a list.
        if (pair := pair_of(hint)) is not None:
            key, value = pair
            frozen = item_of(hint) is not None
            if key is str and value in PLAIN:
                return partial(read_plain_pairs, value, frozen)
            return partial(read_pairs, int if key is int else str, self._reader(value), frozen)
        if (item := item_of(hint)) is not None:
            kind = list if get_origin(hint) is list else tuple
            if item in PLAIN:
                return partial(read_plain_items, item, kind)
            return partial(read_items, self._reader(item), kind)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return partial(read_member, hint, {each.value: each for each in hint})
        if hint in PLAIN:
            return partial(read_plain, hint)
        return read_any

    def _compiled_reader(self, kind: type, form: JsonForm) -> Reader:
        source, values = Source(), list[str]()
        mapped = attributes_of(kind)
        if form.inline and self._refuse_unknown:
            raise MappingError(f"{kind.__name__} has inline members: all keys must be allowed")
        # Read a hidden field that has no default, because the constructor needs a value.
        read = {
            name: form.names.get(name, name)
            for name in mapped
            if name not in form.hidden.split() or mapped[name].required
        }
        body = self._object_checks(source, kind, form, list(read.values()))
        # A key can have the value null, so an absent key needs a marker that no data can contain.
        missing = source.bind(MISSING, "missing")
        for at, each in enumerate(mapped.values()):
            item = f"f{at}"
            values.append(each.argument(item))
            if each.name not in read:
                body.append(f"{item} = {source.default(each)}")
                continue
            if each.name in form.inline.split():
                body.append(f"{item} = {source.bind(self._reader(each.hint), 'read')}(data, w)")
                continue
            key = read[each.name]
            found = f"data.get({key!r}, {missing})"
            if form.as_list:
                position = list(read).index(each.name)
                found = f"data[{position}] if len(data) > {position} else {missing}"
            if not form.as_list and each.hint in PLAIN and each.default is not MISSING:
                # The default passes the type check, so an absent key needs no separate test.
                default = source.bind(each.default, "default")
                body.append(f"{item} = data.get({key!r}, {default})")
                body += self._checked(source, each, item, key, first=True)
                continue
            body += [f"{item} = {found}", f"if {item} is {missing}:"]
            if each.required:
                body.append(f"    {source.bind(required, 'required')}(w, {key!r})")
            else:
                body.append(f"    {item} = {source.default(each)}")
            body += self._checked(source, each, item, key)
        body.append(f"return {source.bind(kind, 'kind')}({', '.join(values)})")
        return cast("Reader", source.compile("read(data, w)", body))

    def _object_checks(
        self, source: Source, kind: type, form: JsonForm, keys: Sequence[str]
    ) -> list[str]:
        """Returns the lines that check the type and the keys of an object before its fields are
        read.
        """
        if form.as_list:
            check = source.bind(partial(check_list, len(keys)), "check_list")
            return [f"if type(data) is not list or len(data) > {len(keys)}: {check}(data, w)"]
        check = source.bind(partial(check_object, kind.__name__), "check_object")
        lines = [f"if type(data) is not dict: {check}(data, w)"]
        if self._refuse_unknown and not form.ignore_unknown:
            known = source.bind(frozenset(keys), "keys")
            check = source.bind(partial(refuse_unknown, frozenset(keys)), "refuse_unknown")
            lines.append(f"if not {known}.issuperset(data): {check}(data, w)")
        return lines

    def _checked(
        self, source: Source, each: Attribute, item: str, key: str, *, first: bool = False
    ) -> list[str]:
        """Returns the lines that check and convert one present item.

        If `first` is true, the lines begin with `if`. If it is false, they begin with `elif` or
        `else`, and continue an `if` for the same item.
        """
        # This expression gives the path that `join_path` returns. The generated code evaluates the
        # path only if the item must be converted or is wrong.
        path = f"w + {f'.{key}'!r} if w else {key!r}"
        lines = []
        if isinstance(each.hint, type) and issubclass(each.hint, StrEnum):
            words = source.bind({member.value: member for member in each.hint}, "words")
            lines = [
                f"elif type({item}) is str and {item} in {words}:",
                f"    {item} = {words}[{item}]",
            ]
        condition = f"type({item}) is not {source.bind(each.hint, 'hint')}"
        condition = condition if each.hint in PLAIN else ""
        if each.optional:
            condition = f"{item} is not None" + (f" and {condition}" if condition else "")
        reader = source.bind(self._reader(each.hint), "read")
        if first:
            return [f"if {condition}:", f"    {item} = {reader}({item}, {path})"]
        lines.append(f"elif {condition}:" if condition else "else:")
        return [*lines, f"    {item} = {reader}({item}, {path})"]


def moment_text(moment: datetime) -> str:
    """Returns a time as RFC 3339 in UTC, with "Z"."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _same(value: Any) -> Any:
    return value


def _differs(source: Source, each: Attribute, item: str) -> str:
    """Returns an expression that is true if an item differs from the default of its field."""
    default = each.default if each.default is not MISSING else each.default_factory()
    # Compare None and enum members by identity, which is faster.
    if default is None or isinstance(default, Enum):
        return f"({item}) is not {source.bind(default, 'default')}"
    if not default and not each.optional:  # test the truth value, because some types compare slowly
        return item
    return f"({item}) != {source.bind(default, 'default')}"


CPU_LIST = JsonForm(write=str, read=read_cpu_list)
MOMENT = JsonForm(write=moment_text, read=read_moment)

PLAIN_FORM = JsonCodec()
to_json = PLAIN_FORM.to_json
from_json = PLAIN_FORM.from_json
