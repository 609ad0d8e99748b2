"""The loss by chunks of rows beside one expression for all rows: `pytest benches/test_topk_loss.py --benchmark-only`.

Forward and backward on one core, in alternating rounds; `extra_info` holds the median of each, in ms.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from softs_fast.codecs import TopKLogits, topk_kl, topk_logits

#: Rows, classes, k.
SHAPES = {"small": (8, 100, 5), "medium": (64, 4_000, 20), "large": (64, 131_072, 64)}
N_ROUNDS = 15


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_loss(benchmark: Any, shape: str, dtype: torch.dtype) -> None:
    n, n_classes, k = SHAPES[shape]
    generator = torch.Generator().manual_seed(0)
    teacher = topk_logits(torch.randn(n, n_classes, generator=generator) * 3, k)
    student = torch.randn(n, n_classes, generator=generator).to(dtype).requires_grad_()
    ways: dict[str, Callable[[], None]] = {
        "chunks": lambda: topk_kl(student, teacher).backward(),  # type: ignore[no-untyped-call]
        "one expression": lambda: _one_expression(student, teacher).backward(),  # type: ignore[no-untyped-call]
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}

    def alternate() -> None:
        for name, way in ways.items():
            student.grad = None
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)

    n_rounds = N_ROUNDS if shape == "large" else 20 * N_ROUNDS
    benchmark.group = f"forward and backward, {n} x {n_classes} {dtype}"
    benchmark.pedantic(alternate, rounds=n_rounds, warmup_rounds=2)
    benchmark.extra_info.update(
        {f"{name}, ms": round(1e3 * statistics.median(times), 3) for name, times in seconds.items()}
    )


def _one_expression(student: torch.Tensor, teacher: TopKLogits) -> torch.Tensor:
    """The forward divergence of all rows at once, differentiated by torch: its memory is 20 bytes per logit."""
    student = student.float()
    log_p = teacher.values - teacher.lse.unsqueeze(-1)
    rest = (1 - log_p.exp().sum(-1, keepdim=True)).clamp(min=0)
    tail = student.scatter(-1, teacher.indices, -torch.inf).logsumexp(-1, keepdim=True)
    log_q = torch.log_softmax(torch.cat([student.gather(-1, teacher.indices), tail], -1), -1)
    p, log_p = torch.cat([log_p.exp(), rest], -1), torch.cat([log_p, rest.log()], -1)
    return torch.where(p > 0, p * (log_p - log_q), 0).sum(-1).mean()
