"""Tensors in memory: dtypes, tensors of varying length, tensors behind others, CUDA tensors and streams by address; file headers.

`cuda` is a module that is used as one, because its names are those of torch; it needs native modules. Nothing here
imports torch or numpy before it is needed.
"""

from .devices import check_visible, named_device
from .dtypes import (
    ITEM_BYTES,
    STAND_INS,
    array_dtype,
    checked_value,
    contiguous_bytes,
    copy_into,
    import_numpy,
    import_torch,
    is_tensor,
    on_host,
    tensor_over,
    torch_dtype,
)
from .file_header import FILE_DTYPES, file_header
from .local import as_plain, is_distributed, is_plain, local_tensor, mark_written, shard_of
from .modes import for_later
from .ragged import RaggedTensor
from .tuples import call_on_all, made_as_tuples

__all__ = [
    "FILE_DTYPES",
    "ITEM_BYTES",
    "STAND_INS",
    "RaggedTensor",
    "array_dtype",
    "as_plain",
    "call_on_all",
    "check_visible",
    "checked_value",
    "contiguous_bytes",
    "copy_into",
    "cuda",
    "file_header",
    "for_later",
    "import_numpy",
    "import_torch",
    "is_distributed",
    "is_plain",
    "is_tensor",
    "local_tensor",
    "made_as_tuples",
    "mark_written",
    "named_device",
    "on_host",
    "shard_of",
    "tensor_over",
    "torch_dtype",
]
