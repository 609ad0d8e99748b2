"""Values to and from messages of protobuf; their descriptors are made from the classes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from .bounds import clip
from .formats import Format
from .kinds import from_plain, plain

__all__ = ["Proto", "schema"]

_Value = TypeVar("_Value")
_ADVICE = "install the same version of softs-fast on both sides"
_SCALARS = {int: "uint64", bool: "bool", float: "double", str: "string", bytes: "bytes"}


class Proto(Format[_Value]):
    """Records as messages of protobuf, version 3: one class, or a union of classes as a oneof.

    The number of a field is its position in the class, that of a class its position in the union, and that of a text
    its position in its Literal, all from 1. A field that is absent is 0, empty or None; unknown ones are left out.

    Args:
        kinds: Class of the value, or a union of classes. None of them may contain itself.
        most_bytes: Most bytes that an encoded value may have.
        what: Name of the message.

    The first use imports protobuf.
    """

    def __init__(self, kinds: Any, *, most_bytes: int, what: str) -> None:
        self.most_bytes, self.what = most_bytes, what
        #: Classes by their names in the oneof; the one class without a oneof has no name.
        self.kinds = {_snake(one.__name__): one for one in get_args(kinds)} or {"": kinds}
        self._names = {kind: name for name, kind in self.kinds.items()}
        self._write, self._read = self._written, self._found

    @cached_property
    def _class(self) -> Any:
        return _message_class(self.what, self.kinds)

    def _written(self, value: Any) -> bytes:
        name, found = self._names[type(value)], _cut(type(value), plain(value))
        from_plain(type(value), found)
        data: bytes = self._class(**({name: found} if name else found)).SerializeToString()
        return data

    def _found(self, data: bytes | bytearray) -> Any:
        from google.protobuf.message import DecodeError

        message, name = self._class(), ""
        try:
            message.ParseFromString(bytes(data))
        except DecodeError as error:
            raise ValueError(f"malformed: {error}") from None
        if "" not in self.kinds:
            name = message.WhichOneof("message")
            if name is None:
                raise ValueError(f"unknown kind; {_ADVICE}")
            message = getattr(message, name)
        return from_plain(self.kinds[name], _read(self.kinds[name], message))

    def _explained(self, data: bytes | bytearray, error: Exception) -> str:
        return f"{error}; {_ADVICE}" if "Invalid enum value" in str(error) else str(error)


def schema(formats: Iterable[Proto[Any]], enums: dict[str, Any]) -> str:
    """Return what a .proto file says of messages, for other languages.

    Args:
        formats: Messages.
        enums: Literals of their fields, by the name of the enumeration.
    """
    names = {one: name for name, one in enums.items()}
    blocks = []
    for name, one in enums.items():
        texts = enumerate(("unspecified", *get_args(one)))
        lines = [f"  {name.upper()}_{text.upper()} = {n};" for n, text in texts]
        blocks.append("\n".join([f"enum {name} {{", *lines]))
    kinds: dict[Any, None] = {}
    for one in formats:
        for name, kind in one.kinds.items():
            _collect(kind, kinds)
            names |= {part: part.__name__ for part in kinds if part not in names} | (
                {} if name else {kind: one.what}
            )
        if "" not in one.kinds:
            fields = [
                f"    {names[kind]} {name} = {n};" for n, (name, kind) in enumerate(one.kinds.items(), 1)
            ]
            blocks.append("\n".join([f"message {one.what} {{", "  oneof message {", *fields, "  }"]))
    for kind in kinds:
        lines = [f"// {(kind.__doc__ or '').splitlines()[0]}", f"message {names[kind]} {{"]
        for n, field in enumerate(_fields(kind), 1):
            type_name = names.get(field.of, field.type)
            lines.append(f"  {field.label}{' ' * bool(field.label)}{type_name} {field.name} = {n};")
        blocks.append("\n".join(lines))
    return "".join(f"\n{block}\n}}\n" for block in blocks)


class _Field(NamedTuple):
    """A field of a message.

    Attributes:
        name: Name of the field.
        type: Name of a scalar type of protobuf, "enum" or "message".
        label: "optional" for a field that may be None, "repeated" for a tuple.
        of: Literal of an enumeration, or class of a message.
        cut: Characters after which a text is cut when it is written; 0: a text that is too long is refused.
        most: Items of a tuple; 0: any number.
    """

    name: str
    type: str
    label: Literal["", "optional", "repeated"] = ""
    of: Any = None
    cut: int = 0
    most: int = 0


@cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    return tuple(_field(one.name, one.type) for one in msgspec.structs.fields(kind))


def _field(name: str, hint: Any, label: Literal["", "optional", "repeated"] = "") -> _Field:
    metas: tuple[Any, ...] = ()
    n_items = 0
    while True:
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            hint, metas = args[0], (*metas, *args[1:])
        elif NoneType in args:
            hint, label = next(one for one in args if one is not NoneType), "optional"
        elif origin is tuple:
            n_items = next((one.max_length for one in metas if one.max_length), 0)
            hint, label, metas = args[0], "repeated", ()
        else:
            break
    if origin is Literal:
        return _Field(name, "enum", label, hint, most=n_items)
    if issubclass(hint, msgspec.Struct):
        return _Field(name, "message", label, hint, most=n_items)
    extra: dict[str, Any] = {}
    for one in metas:
        extra |= one.extra or {}
    most = next((one.max_length for one in metas if one.max_length), 0)
    cut = most if extra.get("cut") else 0
    return _Field(name, extra.get("proto", _SCALARS[hint]), label, cut=cut, most=n_items)


def _collect(kind: Any, kinds: dict[Any, None]) -> None:
    """Add a class, after those that it contains."""
    for field in _fields(kind):
        if field.type == "message":
            _collect(field.of, kinds)
    kinds[kind] = None


def _message_class(what: str, kinds: dict[str, Any]) -> Any:
    """Return the class of a message, in a pool of its own, which holds no other package's messages."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    numbers = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=what, syntax="proto3")
    all_kinds: dict[Any, None] = {}
    for kind in kinds.values():
        _collect(kind, all_kinds)
    for kind in all_kinds:
        message = file.message_type.add(name=kind.__name__)
        for n, one in enumerate(_fields(kind), 1):
            added = message.field.add(
                name=one.name,
                number=n,
                type=numbers.Type.Value(f"TYPE_{one.type.upper()}"),
                label=numbers.LABEL_REPEATED if one.label == "repeated" else numbers.LABEL_OPTIONAL,
            )
            if one.type == "message":
                added.type_name = f".{one.of.__name__}"
            elif one.type == "enum":
                # In a message of its own, so that its names are those of no field.
                added.type_name = f".{kind.__name__}.{one.name}_.Text"
                enum = message.nested_type.add(name=f"{one.name}_").enum_type.add(name="Text")
                for number, text in enumerate(("", *get_args(one.of))):
                    enum.value.add(name=text or "unspecified_", number=number)
            if one.label == "optional" and one.type != "message":
                added.proto3_optional, added.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{one.name}")
    if "" not in kinds:
        choice = file.message_type.add(name=what)
        choice.oneof_decl.add(name="message")
        for n, (name, kind) in enumerate(kinds.items(), 1):
            choice.field.add(
                name=name,
                number=n,
                type=numbers.TYPE_MESSAGE,
                type_name=f".{kind.__name__}",
                label=1,
                oneof_index=0,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(file.message_type[-1].name))


def _cut(kind: Any, found: Any) -> Any:
    """Cut the texts of a plain message that may be cut, in place; return it."""
    for field in _fields(kind):
        part = found[field.name]
        if not part or not _is_cut(field):
            continue
        parts = part if field.label == "repeated" else [part]
        cut = [clip(one, field.cut) if field.cut else _cut(field.of, one) for one in parts]
        found[field.name] = cut if field.label == "repeated" else cut[0]
    return found


@cache
def _is_cut(field: _Field) -> bool:
    return field.cut > 0 or (field.type == "message" and any(map(_is_cut, _fields(field.of))))


def _read(kind: Any, message: Any) -> dict[str, Any]:
    """Return a message as dicts, lists, numbers, texts and bytes."""
    found = {}
    for name, type_name, label, of, _, most in _fields(kind):
        part = getattr(message, name)
        if most and len(part) > most:
            # Before values are made of them.
            raise ValueError(f"{kind.__name__}.{name} has {len(part)} items; at most {most}")
        if label == "optional" and not message.HasField(name):
            part = None
        elif type_name == "message":
            part = [_read(of, one) for one in part] if label == "repeated" else _read(of, part)
        elif type_name == "enum":
            texts = get_args(of)
            part = texts[part - 1] if 0 < part <= len(texts) else f"number {part}"
        elif label == "repeated":
            part = list(part)
        found[name] = part
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
