"""The largest logits of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConfigError
from ..tensors import import_torch, made_as_tuples

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TopKLogits", "topk_logits"]


@made_as_tuples
class TopKLogits(NamedTuple):
    """The k largest logits of each row, and the log-sum-exp of the whole row.

    Attributes:
        values: The k largest of each row, largest first, dtype of the logits [..., k].
        indices: Positions of these values in the row, int64 [..., k].
        lse: Log-sum-exp of the whole row, float32 [...]; `values - lse[..., None]` are log-probabilities.
    """

    values: Tensor
    indices: Tensor
    lse: Tensor


def topk_logits(logits: Tensor, k: int) -> TopKLogits:
    """Return what `TopK(k)` keeps of logits, computed by torch on their device.

    Args:
        logits: float32, float16 or bfloat16 [..., V], on any device.
        k: at most V.

    Raises:
        ConfigError: k is out of range, or there is no axis.
        ImportError: torch is not installed.
    """
    torch = import_torch()
    if not logits.ndim or not 1 <= k <= logits.shape[-1]:
        raise ConfigError(f"need k logits of each row, k from 1 on; have k={k}, shape {tuple(logits.shape)}")
    logits = logits.detach()
    values, indices = torch.topk(logits, k, dim=-1)
    return TopKLogits(values, indices, torch.logsumexp(logits.float(), dim=-1))
