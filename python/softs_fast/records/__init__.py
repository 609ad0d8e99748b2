"""What travels or is kept: frozen values of closed kinds, every field with a bound, as msgpack or JSON.

| for | write |
|---|---|
| a value written by name; unknown keys are left out | `class Failure(Record)` |
| a value written by position; as many items as fields | `class Free(Message, tag=5)` |
| a bound | `Annotated[str, most(64)]`, `Annotated[int, span(1, 9)]`, `shaped("[a-z]*")`, `Count`, `Finite`, `Amount` |
| lists, dicts and numbers | `plain(value)`, `from_plain(Free, found)` |
| bytes | `Packed(Free \\| End, ...)`, `Json(Failure, ...)`, `Proto(Status, ...)` |

Bytes are bounded before they are parsed, and items before values are made of them. Whatever is read is a value within its bounds or
a `WireError` that names the field; nothing is pickled, and no field is of any type. Values made here are not checked
until they are read, or given to `checked`.
"""

from .bounds import CUT, NO_NUL, U32, Amount, Count, Finite, Tag64, as_number, clip, most, shaped, span
from .formats import Json, Packed
from .kinds import Message, Record, checked, field, from_plain, plain, replace
from .proto import Proto, schema

__all__ = [
    "CUT",
    "NO_NUL",
    "U32",
    "Amount",
    "Count",
    "Finite",
    "Json",
    "Message",
    "Packed",
    "Proto",
    "Record",
    "Tag64",
    "as_number",
    "checked",
    "clip",
    "field",
    "from_plain",
    "most",
    "plain",
    "replace",
    "schema",
    "shaped",
    "span",
]
