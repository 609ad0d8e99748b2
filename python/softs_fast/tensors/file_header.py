"""The header of a file of safetensors: eight bytes of its length, JSON, and the tensors end to end behind it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["FILE_DTYPES", "file_header"]

#: Names of dtypes in the format.
FILE_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "uint64": "U64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def file_header(tensors: Iterable[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str]) -> bytes:
    """Return all bytes before the first tensor, which begins at a multiple of eight.

    Args:
        tensors: Name, dtype (a key of `FILE_DTYPES`), shape and bytes of each tensor, in the order of the file.
        metadata: Texts for readers.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, dtype, shape, n_bytes in tensors:
        start, end = end, end + n_bytes
        header[name] = {"dtype": FILE_DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
