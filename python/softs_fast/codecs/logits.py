"""The largest logits of each row, and a student's loss against them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from ..errors import ConfigError
from ..tensors.dtypes import import_torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TopKLogits", "topk_kl", "topk_logits"]


class TopKLogits(NamedTuple):
    """The k largest logits of each row, and the log-sum-exp of the whole row.

    Attributes:
        values: the k largest of each row, largest first, dtype of the logits [..., k].
        indices: where they are in the row, int64 [..., k].
        lse: log-sum-exp of the whole row, float32 [...]; `values - lse[..., None]` are log-probabilities.
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


def topk_kl(
    student: Tensor, teacher: TopKLogits, reduction: Literal["mean", "sum", "none"] = "mean"
) -> Tensor:
    """Return KL(teacher || student) over the teacher's k classes and one more, which stands for all others.

    With p_i = exp(values_i - lse) and q = softmax(student) at the teacher's indices, P = 1 - sum p_i and
    Q = 1 - sum q_i, a row's loss is

        sum_i p_i (log p_i - log q_i) + P (log P - log Q)

    It is at least 0, at most the KL divergence over all classes, equal to it for k = V, and 0 exactly where the student
    gives the k classes the teacher's probabilities. Q is summed up, as log-sum-exp of the other logits, and not
    subtracted, so there are gradients too where the student's Q is close to 0. All is computed in float32 at least.

    For a temperature T divide both by it, the teacher's logits before they are encoded, and multiply the loss by T^2.

    Args:
        student: logits, floats [..., V]; gradients flow to it.
        teacher: the teacher's logits of rows of V: values and indices [..., k], lse [...]; no gradients flow to it.
        reduction: "mean" over rows, "sum", or "none".

    Returns:
        float32, or the student's dtype where that is float64: [], or [...] for "none".

    Raises:
        ConfigError: shapes that do not fit, or an unknown reduction.
        ImportError: torch is not installed.

    Source: KL divergence with all other classes in one group; that grouping never makes it larger is the log
    sum inequality (Cover and Thomas, "Elements of Information Theory", theorem 2.7.1). The k classes alone, scaled to
    1, would make a biased student (Anshumann et al., "Sparse Logit Sampling: Accelerating Knowledge Distillation in
    LLMs", ACL 2025).
    """
    torch = import_torch()
    values, indices, lse = teacher
    *lead, n_classes = student.shape if student.ndim else (0,)
    if not lead == list(lse.shape) == list(values.shape[:-1]) or values.shape != indices.shape:
        raise ConfigError(
            f"logits {list(student.shape)} do not fit the teacher's values {list(values.shape)}, indices "
            f"{list(indices.shape)} and lse {list(lse.shape)}"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ConfigError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    student = student if student.dtype == torch.float64 else student.float()
    log_p = (values.to(student.dtype) - lse.unsqueeze(-1)).detach()
    p = log_p.exp()
    picked = student.gather(-1, indices)
    if indices.shape[-1] == n_classes:
        log_q = torch.log_softmax(picked, dim=-1)
        loss = _divergence(p, log_p, log_q)
    else:
        # The classes that the teacher's values do not cover.
        others = student.scatter(-1, indices, -torch.inf).logsumexp(-1, keepdim=True)
        log_q = torch.log_softmax(torch.cat([picked, others], -1), dim=-1)
        rest = (1 - p.sum(-1, keepdim=True)).clamp(min=0)
        loss = _divergence(torch.cat([p, rest], -1), torch.cat([log_p, rest.log()], -1), log_q)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.mean()


def _divergence(p: Tensor, log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return sum p (log p - log q) over the last axis, where 0 log 0 = 0."""
    torch = import_torch()
    divergence: Tensor = torch.where(p > 0, p * (log_p - log_q), 0).sum(-1)
    return divergence
