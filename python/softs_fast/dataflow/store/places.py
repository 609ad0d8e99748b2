"""Places: where the value of a row is kept, as plain types that a message can have. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from ...errors import WireError
from ...records import Count, Message, Tag64, from_plain, most, plain, shaped, span

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

_FIXED_BYTES = {"bool": 1, "float": 8, "none": 0}

#: Number of a worker, a process or a descriptor.
Rank = Annotated[int, span(0, (1 << 31) - 1)]
#: Bytes, or where they begin.
Size = Annotated[int, span(0, MAX_BYTES - 1)]
Kind = Annotated[str, most(max(map(len, KINDS))), shaped("|".join(KINDS))]
Dtype = Annotated[str, most(max(map(len, ITEM_BYTES))), shaped("|".join(ITEM_BYTES))]
_Text = Annotated[str, most(300), shaped("[ -~]*")]

#: Dtype and shape of a tensor.
Part = tuple[Dtype, Annotated[tuple[Size, ...], most(64)]]
Parts = Annotated[tuple[Part, ...], most(1 << 16)]
#: Kind and parts of a value.
Form = tuple[Kind, Parts]


class SegmentAddress(Message):
    """By which other processes open the segment of a store.

    Attributes:
        pid: Number of the process.
        started: Start of the process, in clock ticks since boot.
        pid_namespace: Inode of its pid namespace.
        fd: Descriptor of the segment in that process.
        nonce: Random 16 bytes; the segment has them, too.
        n_bytes: Bytes of the segment, a multiple of 4096.
        host: Boot id of the host's kernel; empty if that is not known.
        endpoint: Endpoint at which other hosts read the values; empty if they cannot.
    """

    pid: Rank
    started: Count
    pid_namespace: Count
    fd: Rank
    nonce: Annotated[bytes, most(16, least=16)]
    n_bytes: Annotated[int, span(0, MAX_BYTES)]
    host: _Text
    endpoint: _Text

    @property
    def node(self) -> str:
        """What processes have in common that can open each other's segments."""
        return f"{self.host}.{self.pid_namespace}"


class Place(Message):
    """Where the value of a row in a column is.

    Attributes:
        worker: Number of the worker that holds the value.
        segment: Address of that worker's segment.
        offset: Offset of the first byte, a multiple of 64.
        n_bytes: Bytes of the value.
        serial: Serial number behind the value; another one there says that the row was freed.
        kind: Kind of the value, one of `KINDS`.
        parts: Dtype and shape of each tensor of the value; empty for other values.
    """

    worker: Rank
    segment: SegmentAddress
    offset: Size
    n_bytes: Size
    serial: Tag64
    kind: Kind
    parts: Parts

    def as_wire(self) -> list[Any]:
        """Return it as lists, tuples, integers, bytes and strings."""
        made: list[Any] = plain(self)
        return made

    @classmethod
    def from_wire(cls, wire: object) -> Place:
        """Return the place of what `as_wire` made; each field is checked.

        Raises:
            WireError: a field is missing or impossible; see `check`.
        """
        place: Place = from_plain(cls, wire)
        place.check()
        return place

    def check(self) -> None:
        """Check what no field says alone.

        Raises:
            WireError: the value is not inside of the segment, or dtypes and shapes are not of that many bytes.
        """
        if (
            self.offset % ALIGNMENT
            or seal_offset(self.offset, self.n_bytes) + SEAL_BYTES > self.segment.n_bytes
        ):
            raise WireError(
                f"place: {self.n_bytes} bytes at {self.offset} are not in a segment of {self.segment.n_bytes} bytes, at "
                f"a multiple of {ALIGNMENT}"
            )
        needed = form_bytes(checked_form((self.kind, self.parts)))
        if needed not in (None, self.n_bytes):
            raise WireError(
                f"place: a {self.kind} has {self.n_bytes} bytes; need {needed} for {repr(self.parts)[:60]}"
            )


def checked_form(form: Form) -> Form:
    """Return kind and parts of a value.

    Raises:
        WireError: values of this kind have other parts.
    """
    kind, parts = form
    if (kind == "tensor" and len(parts) != 1) or (kind not in ("tensor", "tensors") and parts):
        raise WireError(f"place: a {kind} has {len(parts)} dtypes and shapes")
    return form


def form_of_wire(wire: object) -> Form:
    """Return kind and parts of a value of a list of both.

    Raises:
        WireError: they are no value that rows can have.
    """
    return checked_form(from_plain(Form, wire))


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
