"""A student's loss against the largest logits of a teacher."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ..errors import ConfigError
from ..tensors import import_torch
from .logits import TopKLogits

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["topk_kl"]


def topk_kl(
    student: Tensor,
    teacher: TopKLogits,
    reduction: Literal["mean", "sum", "none"] = "mean",
    *,
    mask: Tensor | None = None,
    temperature: float = 1.0,
    reverse: float = 0.0,
) -> Tensor:
    """Return a KL divergence over the teacher's k classes and one more, the tail, which stands for all others.

    With p_i = exp(values_i - lse), q = softmax(student / T) at the teacher's indices, and the masses of the tail
    P = 1 - sum p_i and Q = 1 - sum q_i, a row's loss is

        T^2 ((1 - reverse) forward + reverse backward)
        forward  = KL(teacher || student) = sum_i p_i (log p_i - log q_i) + P (log P - log Q)
        backward = KL(student || teacher) = sum_i q_i (log q_i - log p_i) + Q (log Q - log P)

    Each divergence is at most the one over all classes, equal to it for k = V, and 0 exactly where the student gives the k
    classes the teacher's probabilities. Q is summed up, as log-sum-exp of the other logits, and not subtracted, so there
    are gradients too where the student's Q is close to 0. P is known no better than float32 holds lse, so in `backward`
    it is at least 2^-24 (abs(lse) + 8), which keeps that finite (docs/numerics.md).

    All is computed in float32 at least, by chunks of rows: beside the gradient, which has the student's dtype, it takes
    memory for one chunk only, 64 MiB or one row on a GPU, 2 MiB or one row on a CPU. The gradient can be computed any
    number of times, but not differentiated.

    Args:
        student: Logits, floats [*rows, V], any strides; gradients flow to it.
        teacher: The teacher's logits of rows of V: values and indices [*rows, k], lse [*rows]; no gradients flow to it. For
            a temperature T they must be those of logits / T: divide before they are encoded, as the largest logits do not
            tell what their log-sum-exp would be at another temperature.
        reduction: "mean" over the rows that count, "sum" of them, or "none".
        mask: Rows that count, bool [*rows]; None: all. Where none does, the mean is 0.
        temperature: T, positive. The loss is scaled by T^2, so that gradients are of one size for all T.
        reverse: Weight of the reverse divergence: 0 is KL(teacher || student), 1 is KL(student || teacher), 0.5 is half of
            their sum, which is Jeffreys' divergence.

    Returns:
        float32, or the student's dtype where that is float64: [], or [*rows] for "none", 0 where a row does not count.

    Raises:
        ConfigError: shapes that do not fit, a mask that is not bool, an unknown reduction, a temperature that is not
            positive and finite, or a weight outside 0 to 1.
        ImportError: torch is not installed.

    Source: KL divergence with all other classes in one group; that grouping never makes it larger is the log
    sum inequality (Cover and Thomas, "Elements of Information Theory", theorem 2.7.1). The k classes alone, scaled to
    1, would make a biased student (Anshumann et al., "Sparse Logit Sampling: Accelerating Knowledge Distillation in
    LLMs", ACL 2025). T^2: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, section 2. The weighted
    sum of both directions: Wu et al., "Rethinking Kullback-Leibler Divergence in Knowledge Distillation for Large Language
    Models", COLING 2025, with one weight for all rows. It has the ends of the generalised Jensen-Shannon divergence
    (Agarwal et al., "On-Policy Distillation of Language Models", ICLR 2024, `beta` of TRL's GKDTrainer), and other values
    between them.
    """
    import_torch()
    _check(student, teacher, reduction, mask, temperature, reverse)
    # That module needs torch when it is imported, and this one must not.
    from .row_losses import Objective, row_losses

    if student.ndim == 1:
        student = student.unsqueeze(0)
    losses = row_losses(student, *teacher, mask, Objective(float(temperature), float(reverse)))
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.mean() if mask is None else losses.sum() / mask.sum().clamp(min=1)


def _check(
    student: Tensor,
    teacher: TopKLogits,
    reduction: str,
    mask: Tensor | None,
    temperature: float,
    reverse: float,
) -> None:
    values, indices, lse = teacher
    lead = list(student.shape[:-1])
    fits = values.shape == indices.shape and lead == list(lse.shape) == list(values.shape[:-1])
    if not student.ndim or not fits:
        raise ConfigError(
            f"logits {list(student.shape)} do not fit the teacher's values {list(values.shape)}, indices "
            f"{list(indices.shape)} and lse {list(lse.shape)}"
        )
    if reduction not in ("mean", "sum", "none"):
        raise ConfigError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    if mask is not None and (list(mask.shape) != lead or mask.dtype != import_torch().bool):
        raise ConfigError(f"mask must be bool {lead}, one for each row, got {mask.dtype} {list(mask.shape)}")
    if not 0 < temperature < math.inf:
        raise ConfigError(f"temperature must be positive and finite, got {temperature!r}")
    if not 0 <= reverse <= 1:
        raise ConfigError(f"reverse must be a weight from 0 to 1, got {reverse!r}")
