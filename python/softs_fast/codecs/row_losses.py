"""Divergences of a student's rows from a teacher's largest logits, and their gradient, by chunks of rows.

Importing this module imports torch.

A row of V logits becomes k + 1 groups: the teacher's k classes, and the *tail*, which is all others. With z = student / T,
let q_c be the probability of group c under softmax(z), p_c the teacher's, m = sum p_c (1 but for rounding), and
t_c = log q_c - log p_c. The losses of a row and their derivatives by the logit u_c of a group are

    forward  F = sum p_c (log p_c - log q_c)        dF/du_c = m q_c - p_c
    reverse  G = sum q_c t_c                        dG/du_c = q_c (t_c - G)

The logit of a class of the top k is its z, so that is its gradient. The logit u of the tail is the log-sum-exp of its z, so
class j of it gets the share exp(z_j - u). Source: own derivation, docs/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Objective", "chunk_rows", "row_losses"]


class Objective(NamedTuple):
    """What is minimised: T^2 ((1 - reverse) F + reverse G).

    Attributes:
        temperature: T, by which the student's logits are divided.
        reverse: weight of the reverse KL divergence, 0 to 1.
    """

    temperature: float
    reverse: float


def row_losses(
    student: Tensor, values: Tensor, indices: Tensor, lse: Tensor, mask: Tensor | None, objective: Objective
) -> Tensor:
    """Return the loss of each row; beside its arguments it keeps k + 2 numbers per row for the gradient.

    Args:
        student: Logits, floats [*rows, V], at least two axes; gradients flow to it.
        values: The teacher's largest logits, floats [*rows, k].
        indices: Their classes, int64 [*rows, k].
        lse: The teacher's log-sum-exp, float32 [*rows].
        mask: Rows that count, bool [*rows]; None: all. Others have the loss 0 and the gradient 0, whatever they hold.
        objective: Temperature, and weight of the reverse divergence.

    Returns:
        float32, or float64 where the student has it, [*rows].
    """
    k, n_rows = indices.shape[-1], lse.numel()
    teacher = [values.reshape(n_rows, k), indices.reshape(n_rows, k), lse.reshape(n_rows)]
    if mask is None:
        losses: Tensor = _RowLosses.apply(student, *teacher, None, objective)
        return losses.view(lse.shape)
    rows = mask.reshape(-1).nonzero().squeeze(-1)
    losses = _RowLosses.apply(student, *(tensor[rows] for tensor in teacher), rows, objective)
    return losses.new_zeros(n_rows).index_copy(0, rows, losses).view(lse.shape)


def chunk_rows(row_bytes: int, device_type: str) -> int:
    """Return how many rows of `row_bytes` to compute at once on a device of this type, at least 1.

    On a CPU a chunk stays in the cache of a core. A GPU needs enough elements for all its cores.
    """
    return max(1, (_CPU_CHUNK_BYTES if device_type == "cpu" else _DEVICE_CHUNK_BYTES) // max(1, row_bytes))


class _RowLosses(torch.autograd.Function):
    """Losses of the rows that count; each class of the tail gets its gradient from the logits, again by chunks."""

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        values: Tensor,
        indices: Tensor,
        lse: Tensor,
        rows: Tensor | None,
        objective: Objective,
    ) -> Tensor:
        size = _chunk_size(student, len(lse))
        has_tail = indices.shape[-1] < student.shape[-1]
        losses, gradients, tails = [], [], []
        teacher = zip(*(torch.split(tensor, size) for tensor in (values, indices, lse)), strict=True)
        chunks = _chunks(student, rows, size, objective.temperature)
        for (_, z), (chunk_values, classes, chunk_lse) in zip(chunks, teacher, strict=True):
            groups = z.gather(-1, classes)
            if has_tail:
                tails.append(_tail_lse(z, classes))
                groups = torch.cat([groups, tails[-1]], -1)
            log_q = torch.log_softmax(groups, -1)
            loss, gradient = _divergence(log_q, chunk_values, chunk_lse, objective.reverse)
            losses.append(loss)
            gradients.append(gradient)
        tail = torch.cat(tails) if has_tail else None
        ctx.save_for_backward(student, indices, rows, tail, torch.cat(gradients))
        ctx.temperature = objective.temperature
        return torch.cat(losses).mul_(objective.temperature**2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_losses: Tensor) -> tuple[Tensor | None, ...]:
        student, indices, rows, tail, gradient = ctx.saved_tensors
        size, k = _chunk_size(student, len(grad_losses)), indices.shape[-1]
        make = torch.empty if rows is None else torch.zeros
        grad = make(student.shape, dtype=student.dtype, device=student.device)
        flat_grad = grad.view(-1, student.shape[-1])
        # The loss has T^2, and the logits are divided by T.
        of_groups = gradient * (ctx.temperature * grad_losses).unsqueeze(-1)
        # Where all of a tail is -inf, none of it has a share: -inf minus a finite number is -inf, and not NaN.
        tails = repeat(None) if tail is None else torch.split(_finite(tail), size)
        chunks = _chunks(student, rows, size, ctx.temperature)
        for (part, z), classes, of_chunk, chunk_tail in zip(
            chunks, indices.split(size), of_groups.split(size), tails, strict=False
        ):
            if chunk_tail is not None:
                z.sub_(chunk_tail).exp_().mul_(of_chunk[:, k:])
            z.scatter_(-1, classes, of_chunk[:, :k])
            if isinstance(part, slice):
                flat_grad[part] = z
            else:
                flat_grad.index_copy_(0, part, z.to(grad.dtype))
        return grad, None, None, None, None, None


def _divergence(log_q: Tensor, values: Tensor, lse: Tensor, reverse: float) -> tuple[Tensor, Tensor]:
    """Return (1 - reverse) F + reverse G of each row, floats [n], and its derivatives by the logits of the groups.

    Args:
        log_q: logarithms of the student's probabilities, floats [n, k + 1], or [n, k] where k = V.
        values: the teacher's largest logits, floats [n, k].
        lse: their log-sum-exp, float32 [n].
        reverse: weight of G.
    """
    lse = lse.to(log_q.dtype).unsqueeze(-1)
    log_p = values.to(log_q.dtype) - lse
    p, q = log_p.exp(), log_q.exp()
    rest = None if log_p.shape == log_q.shape else (1 - p.sum(-1, keepdim=True)).clamp_(min=0)
    both = []
    if reverse < 1:
        p_all = p if rest is None else torch.cat([p, rest], -1)
        log_p_all = log_p if rest is None else torch.cat([log_p, rest.log()], -1)
        terms = _weighted(p_all, log_p_all - log_q)
        both.append((terms.sum(-1), q * p_all.sum(-1, keepdim=True) - p_all))
    if reverse > 0:
        floored = log_p.clamp(min=_LEAST_LOG_P)
        if rest is not None:
            least = (lse.abs() + _ROUNDINGS) * _HALF_ULP
            floored = torch.cat([floored, torch.maximum(rest, least).log_()], -1)
        terms = _weighted(q, log_q - floored)
        loss = terms.sum(-1)
        both.append((loss, terms - q * loss.unsqueeze(-1)))
    if len(both) == 1:
        return both[0]
    return torch.lerp(both[0][0], both[1][0], reverse), torch.lerp(both[0][1], both[1][1], reverse)


def _chunk_size(student: Tensor, n_rows: int) -> int:
    row_bytes = student.shape[-1] * _compute_dtype(student).itemsize
    return max(1, min(chunk_rows(row_bytes, student.device.type), n_rows))


def _chunks(
    student: Tensor, rows: Tensor | None, size: int, temperature: float
) -> Iterator[tuple[slice | Tensor, Tensor]]:
    """Yield some rows, at least once, and their logits / temperature, float32 or float64 [n, V].

    Rows are a range, or where not all count their numbers, int64 [n]. The logits are in memory that the next chunk
    overwrites; the caller may change them.
    """
    n_rows = math.prod(student.shape[:-1]) if rows is None else len(rows)
    memory = torch.empty((size, student.shape[-1]), dtype=_compute_dtype(student), device=student.device)
    for start in range(0, max(n_rows, 1), size):
        stop = min(start + size, n_rows)
        part = slice(start, stop) if rows is None else rows[start:stop]
        z = memory[: stop - start].copy_(_take(student, part))
        yield part, z if temperature == 1 else z.div_(temperature)


def _take(student: Tensor, part: slice | Tensor) -> Tensor:
    """Return some rows of logits [*rows, V], without a copy if they lie one after the other."""
    if student.is_contiguous():
        return student.view(-1, student.shape[-1])[part]
    # As in logits[:, :-1]: only these rows are copied, not all.
    if isinstance(part, slice):
        part = torch.arange(part.start, part.stop, device=student.device)
    return student[torch.unravel_index(part, student.shape[:-1])]


def _tail_lse(z: Tensor, indices: Tensor) -> Tensor:
    """Return the log-sum-exp of all classes but some, floats [n, 1]; overwrites z [n, V]."""
    top = _finite(z.scatter_(-1, indices, -torch.inf).amax(-1, keepdim=True))
    return z.sub_(top).exp_().sum(-1, keepdim=True).log_().add_(top)


def _finite(values: Tensor) -> Tensor:
    """Return values with infinities replaced by the finite numbers next to them."""
    limits = torch.finfo(values.dtype)
    return values.clamp(limits.min, limits.max)


def _weighted(probability: Tensor, value: Tensor) -> Tensor:
    """Return probability * value, and 0 where the probability is 0."""
    return torch.where(probability > 0, probability * value, 0)


def _compute_dtype(student: Tensor) -> torch.dtype:
    return torch.float64 if student.dtype == torch.float64 else torch.float32


#: Bytes of one chunk.
_CPU_CHUNK_BYTES = 2 << 20
_DEVICE_CHUNK_BYTES = 64 << 20
#: Half a unit in the last place of a float32 near 1. The teacher's lse is off by up to abs(lse) + 5 of these, and the sum of
#: its probabilities by 3 more, so a tail below their sum cannot be told from 0.
_HALF_ULP = 2.0**-24
_ROUNDINGS = 8
#: The logarithm of the least normal float32: a class that the teacher excludes has this in the reverse divergence.
_LEAST_LOG_P = math.log(torch.finfo(torch.float32).tiny)
