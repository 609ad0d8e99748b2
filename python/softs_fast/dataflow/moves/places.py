"""Places: where the value of a row is kept, as plain types that a message can have. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import WireError

__all__ = [
    "ALIGNMENT",
    "ITEM_BYTES",
    "KINDS",
    "MAX_BYTES",
    "SEAL_BYTES",
    "Place",
    "SegmentAddress",
    "spread",
]

#: Values begin at multiples of it.
ALIGNMENT = 64
#: A number behind each value, at a multiple of 8, which says that it is still this value.
SEAL_BYTES = 8
#: Largest segment.
MAX_BYTES = 1 << 46
#: Bytes of one item of each dtype.
ITEM_BYTES = {
    **dict.fromkeys(("complex128",), 16),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
}
#: What a value is; "tensors" is a list of them, "none" is None and has no bytes.
KINDS = ("tensor", "tensors", "bytes", "str", "bool", "int", "float", "none")

_MOST_DIMS = 64
_MOST_TENSORS = 1 << 16
_MOST_TEXT = 300
_FIXED_BYTES = {"bool": 1, "float": 8, "none": 0}

#: Dtype and shape of a tensor.
Part = tuple[str, tuple[int, ...]]
#: Kind and parts of a value.
Form = tuple[str, tuple[Part, ...]]


@dataclass(frozen=True, slots=True)
class SegmentAddress:
    """By which other processes open the segment of a store.

    Attributes:
        pid: number of the process.
        started: start of the process, clock ticks since boot.
        pid_namespace: inode of its pid namespace.
        fd: descriptor of the segment there.
        nonce: random, 16 bytes; the segment has them, too.
        n_bytes: of the segment, a multiple of 4096.
        host: the boot id of its kernel; empty if that is not known.
        endpoint: where other hosts read its values; empty if they cannot.
    """

    pid: int
    started: int
    pid_namespace: int
    fd: int
    nonce: bytes
    n_bytes: int
    host: str = ""
    endpoint: str = ""

    @property
    def node(self) -> str:
        """What processes have in common that can open each other's segments."""
        return f"{self.host}.{self.pid_namespace}"

    def as_wire(self) -> list[int | bytes | str]:
        """Return it as plain types."""
        return [
            *(self.pid, self.started, self.pid_namespace, self.fd),
            *(self.nonce, self.n_bytes, self.host, self.endpoint),
        ]

    @classmethod
    def from_wire(cls, wire: object) -> SegmentAddress:
        """Return it of what `as_wire` made.

        Raises:
            WireError: a field is missing, or is none that a segment can have.
        """
        fields = _fields(wire, "address of a segment", 8)
        pid, started, namespace, fd, nonce, n_bytes, host, endpoint = fields
        for name, number, limit in (
            ("pid", pid, 1 << 31),
            ("started", started, 1 << 63),
            ("pid_namespace", namespace, 1 << 63),
            ("fd", fd, 1 << 31),
            ("n_bytes", n_bytes, MAX_BYTES + 1),
        ):
            _number(f"address of a segment: {name}", number, limit)
        if type(nonce) is not bytes or len(nonce) != 16:
            raise WireError(f"address of a segment: nonce is {_shown(nonce)}; need 16 bytes")
        for name, text in (("host", host), ("endpoint", endpoint)):
            if type(text) is not str or len(text) > _MOST_TEXT or not (text.isprintable() and text.isascii()):
                raise WireError(
                    f"address of a segment: {name} is {_shown(text)}; need at most {_MOST_TEXT} ASCII characters"
                )
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the value of a row in a column is.

    Attributes:
        worker: the number of the worker that holds it.
        segment: of that worker.
        offset: of its first byte, a multiple of 64.
        n_bytes: of the value.
        serial: the number behind the value; another one there says that the row was freed.
        kind: one of `KINDS`.
        parts: dtype and shape of each tensor of it; none for other values.
    """

    worker: int
    segment: SegmentAddress
    offset: int
    n_bytes: int
    serial: int
    kind: str
    parts: tuple[Part, ...]

    def as_wire(self) -> list[Any]:
        """Return it as lists, integers, bytes and strings, as msgpack has them."""
        return [
            self.worker,
            self.segment.as_wire(),
            self.offset,
            self.n_bytes,
            self.serial,
            self.kind,
            [[dtype, list(shape)] for dtype, shape in self.parts],
        ]

    @classmethod
    def from_wire(cls, wire: object) -> Place:
        """Return the place of what `as_wire` made; each field is checked.

        Raises:
            WireError: a field is missing or impossible, the value is not inside of the segment, or dtypes and shapes
                are not of that many bytes.
        """
        worker, segment, offset, n_bytes, serial, kind, parts = _fields(wire, "place", 7)
        _number("place: worker", worker, 1 << 31)
        address = SegmentAddress.from_wire(segment)
        _number("place: offset", offset, MAX_BYTES)
        _number("place: n_bytes", n_bytes, MAX_BYTES)
        _number("place: serial", serial, 1 << 64)
        form = form_of_wire([kind, parts])
        if offset % ALIGNMENT or seal_offset(offset, n_bytes) + SEAL_BYTES > address.n_bytes:
            raise WireError(
                f"place: {n_bytes} bytes at {offset} are not in a segment of {address.n_bytes} bytes, at a multiple of "
                f"{ALIGNMENT}"
            )
        needed = form_bytes(form)
        if needed not in (None, n_bytes):
            raise WireError(f"place: a {kind} has {n_bytes} bytes; need {needed} for {_shown(parts)}")
        return cls(worker, address, offset, n_bytes, serial, *form)


def form_of_wire(wire: object) -> Form:
    """Return kind and parts of a value of a list of both.

    Raises:
        WireError: they are no value that rows can have.
    """
    kind, parts = _fields(wire, "place: form", 2)
    if type(kind) is not str or kind not in KINDS:
        raise WireError(f"place: kind is {_shown(kind)}; need one of {', '.join(KINDS)}")
    checked = tuple(_part(one) for one in _list(parts, "place: parts", _MOST_TENSORS))
    if (kind == "tensor" and len(checked) != 1) or (kind not in ("tensor", "tensors") and checked):
        raise WireError(f"place: a {kind} has {len(checked)} dtypes and shapes")
    return kind, checked


def form_bytes(form: Form) -> int | None:
    """Return how many bytes a value of a form has; None if values of it differ."""
    kind, parts = form
    return spread(parts)[1] if kind in ("tensor", "tensors") else _FIXED_BYTES.get(kind)


def part_bytes(part: Part) -> int:
    """Return how many bytes a tensor has."""
    return ITEM_BYTES[part[0]] * math.prod(part[1])


def spread(parts: Sequence[Part]) -> tuple[list[int], int]:
    """Return where the tensors of a value begin, from its first byte, and how many bytes the value has."""
    at, end = [], 0
    for part in parts:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        at.append(start)
        end = start + part_bytes(part)
    return at, end


def seal_offset(offset: Any, n_bytes: Any) -> Any:
    """Return where the serial number of a value is; of integers, or arrays of them."""
    return offset + -(-n_bytes // SEAL_BYTES) * SEAL_BYTES


def _part(wire: object) -> Part:
    dtype, shape = _fields(wire, "place: tensor", 2)
    if type(dtype) is not str or dtype not in ITEM_BYTES:
        raise WireError(f"place: dtype is {_shown(dtype)}; need one of {', '.join(ITEM_BYTES)}")
    for size in _list(shape, "place: shape", _MOST_DIMS):
        _number("place: size of a dimension", size, MAX_BYTES)
    return dtype, tuple(shape)


def _fields(wire: object, what: str, n: int) -> list[Any]:
    found = _list(wire, what, n)
    if len(found) != n:
        raise WireError(f"{what} has {len(found)} fields; need {n}")
    return found


def _list(wire: object, what: str, most: int) -> list[Any]:
    if not isinstance(wire, (list, tuple)) or len(wire) > most:
        raise WireError(f"{what} is {_shown(wire)}; need a list of at most {most}")
    return list(wire)


def _number(what: str, value: object, limit: int) -> None:
    if type(value) is not int or not 0 <= value < limit:
        raise WireError(f"{what} is {_shown(value)}; need an integer from 0 to {limit - 1}")


def _shown(value: object) -> str:
    return repr(value)[:60]
