"""What the loss allocates, counted by the operators of torch: neither time nor the memory of the process matters."""

import pytest
import torch
from allocations import Allocations

from softs_fast.codecs import TopKLogits, topk_kl, topk_logits

MIB = 2**20
#: Rows of a large vocabulary, [1, 512, 131072] in bfloat16: 128 MiB.
N_ROWS, VOCABULARY, K = 512, 131_072, 64


def random_teacher(n: int, vocabulary: int) -> TopKLogits:
    """Largest logits at random places, without the logits."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.stack([torch.randperm(vocabulary, generator=generator)[:K] for _ in range(n)])
    values = torch.randn(n, K, generator=generator).sort(-1, descending=True).values
    return TopKLogits(values[None], indices[None], values.logsumexp(-1)[None] + 0.1)


@pytest.fixture(scope="module")
def teacher() -> TopKLogits:
    return random_teacher(N_ROWS, VOCABULARY)


def test_the_count_sees_a_copy_in_float32() -> None:
    teacher = topk_logits(torch.randn(1, 4, 1000), 3)
    student = torch.zeros(1, 4, 1000, dtype=torch.bfloat16, requires_grad=True)
    with Allocations() as whole:
        student.float().log_softmax(-1).gather(-1, teacher.indices).sum().backward()
    # Logits and their log-softmax; the gradients of both.
    assert whole.float32_peak >= 3 * 4 * 4000
    assert whole.live == 4 * 2000
    with Allocations() as views:
        student.view(4, 1000)[1:].detach()
    assert views.peak == 0


@pytest.mark.parametrize("reverse", [0.0, 0.5])
@pytest.mark.parametrize("is_masked", [False, True], ids=["all rows", "mask"])
def test_one_chunk_of_float32_beside_the_gradient(
    teacher: TopKLogits, is_masked: bool, reverse: float
) -> None:
    student = torch.zeros(1, N_ROWS, VOCABULARY, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.arange(N_ROWS)[None] % 4 == 0 if is_masked else None
    # Of the teacher's k + 1 groups, some vectors each for all rows, and for the mask the teacher's rows that count.
    of_groups = N_ROWS * (K + 1) * 4
    with Allocations() as forward:
        loss = topk_kl(student, teacher, mask=mask, reverse=reverse)
    assert forward.live <= 4 * of_groups
    chunk = 2 * MIB
    assert chunk <= forward.float32_peak <= chunk + 4 * of_groups
    # In bfloat16 the rows of one chunk, where they are taken by number.
    assert forward.peak <= chunk + is_masked * chunk // 2 + 4 * of_groups
    with Allocations() as backward:
        loss.backward()
    assert chunk <= backward.float32_peak <= chunk + 4 * of_groups
    gradient = N_ROWS * VOCABULARY * 2
    assert gradient + chunk <= backward.peak <= gradient + chunk + is_masked * chunk // 2 + 4 * of_groups
    assert backward.live == gradient
    assert student.grad is not None
    assert student.grad.dtype is torch.bfloat16
