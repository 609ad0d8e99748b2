"""What travels or is kept: frozen values of closed kinds, every field with a bound, as msgpack or JSON.

| for | write |
|---|---|
| a value written by name; unknown keys are left out | `class Failure(Record)` |
| a value written by position; as many items as fields | `class Free(Message, tag=5)` |
| a bound | `Annotated[str, most(64)]`, `Annotated[int, span(1, 9)]`, `shaped("[a-z]*")`, `Count`, `Finite`, `Amount` |
| lists, dicts and numbers | `plain(value)`, `from_plain(Free, found)` |
| bytes | `Packed(Free \\| End, ...)`, `Json(Failure, ...)` |

Bytes are bounded before they are parsed, and items before they are made. Whatever is read is a value within its bounds or
a `WireError` that names the field; nothing is pickled, and no field is of any type. Values made here are not checked
until they are read, or given to `checked`.
"""

from .bounds import NO_NUL, Amount, Count, Finite, Tag64, clip, most, shaped, span
from .formats import Json, Packed
from .kinds import Message, Record, checked, field, from_plain, plain, replace

__all__ = [
    "NO_NUL",
    "Amount",
    "Count",
    "Finite",
    "Json",
    "Message",
    "Packed",
    "Record",
    "Tag64",
    "checked",
    "clip",
    "field",
    "from_plain",
    "most",
    "plain",
    "replace",
    "shaped",
    "span",
]
