"""Encodings of tensors: a teacher applies them as it writes a slot, native code reverses them as it makes batches.

    TensorSpec("logits", (512, 32000), "float32", codec=TopK(64))    # or codec="topk:64"

| codec | bytes per element | decoded value |
|---|---|---|
| none, `"exact"` | as many as the dtype has | the same bits |
| `Cast("bfloat16")`, `"cast:bfloat16"` | 2 or 1 | the nearest number that the other dtype has |
| `Int8(128)`, `"int8:128"` | 1, and 4 per block | at most half a step off; a step is 1/127 of the largest value |
| `TopK(64)`, `"topk:64"` | for each row of logits `k * (item + 2 or 4) + 4` | `TopKLogits`, for the loss `topk_kl` |
| a `CustomCodec`, `"NAME:PARAMETERS"` | what its `nbytes` says | what its `decode` makes |

Formulas, error bounds and what becomes of NaN and infinities: docs/numerics.md.

Importing this module does not import torch.
"""

from .custom import CustomCodec, register_codec
from .encodings import Cast, Codec, Int8, TopK, assemble, decode, encode, parts_of
from .logits import TopKLogits, topk_logits
from .loss import topk_kl
from .parts import Field, Part, read_into
from .texts import as_codec

__all__ = [
    "Cast",
    "Codec",
    "CustomCodec",
    "Field",
    "Int8",
    "Part",
    "TopK",
    "TopKLogits",
    "as_codec",
    "assemble",
    "decode",
    "encode",
    "parts_of",
    "read_into",
    "register_codec",
    "topk_kl",
    "topk_logits",
]
