"""The loss against the largest logits: its definition, its bounds, and gradients wherever the student is."""

import pytest
import torch
from torch.nn import functional

from softs_fast import ConfigError
from softs_fast.codecs import topk_kl, topk_logits


def random_logits(*shape: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def definition(student: torch.Tensor, teacher: torch.Tensor, k: int) -> torch.Tensor:
    """KL over k classes and the sum of all others, from full distributions."""
    p, q = teacher.softmax(-1), student.softmax(-1)
    indices = teacher.topk(k).indices
    grouped = []
    for full in (p, q):
        top = full.gather(-1, indices)
        others = full.scatter(-1, indices, 0).sum(-1, keepdim=True)
        grouped.append(torch.cat([top, others], -1))
    return (torch.xlogy(grouped[0], grouped[0]) - torch.xlogy(grouped[0], grouped[1])).sum(-1)


@pytest.mark.parametrize("k", [1, 5, 29, 30])
def test_it_is_its_definition(k: int) -> None:
    student, teacher = random_logits(4, 6, 30), random_logits(4, 6, 30, seed=1)
    wanted = definition(student, teacher, k)
    rows = topk_kl(student, topk_logits(teacher, k), "none")
    assert rows.dtype is torch.float64
    torch.testing.assert_close(rows, wanted, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(topk_kl(student, topk_logits(teacher, k)), wanted.mean(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(
        topk_kl(student, topk_logits(teacher, k), "sum"), wanted.sum(), atol=5e-5, rtol=1e-5
    )
    full = functional.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    assert (rows >= -1e-6).all()
    assert (rows <= full + 1e-5).all()
    if k == 30:
        torch.testing.assert_close(rows, full, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("k", [3, 8])
def test_gradients(k: int) -> None:
    teacher = topk_logits(random_logits(2, 8, seed=1), k)
    student = random_logits(2, 8).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: topk_kl(x, teacher, "none"), [student])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_student_that_is_sure_of_itself_has_gradients(dtype: torch.dtype) -> None:
    teacher = topk_logits(random_logits(5, 100), 4)
    student = torch.zeros(5, 100, dtype=dtype)
    student[:, 7] = 200.0
    student.requires_grad_()
    loss = topk_kl(student, teacher)
    assert loss.dtype is torch.float32
    loss.backward()
    assert student.grad is not None
    assert loss.isfinite()
    assert loss > 10
    assert student.grad.isfinite().all()
    assert student.grad[:, 7].float().sum() > 0.1


def test_halves_are_computed_with_as_floats() -> None:
    teacher = topk_logits(random_logits(5, 100), 4)
    student = random_logits(5, 100, seed=3).bfloat16()
    assert torch.equal(topk_kl(student, teacher, "none"), topk_kl(student.float(), teacher, "none"))


def test_descending_it_gives_the_student_the_teachers_classes() -> None:
    teacher_logits = random_logits(3, 40).float()
    teacher = topk_logits(teacher_logits, 5)
    student = torch.zeros(3, 40, requires_grad=True)
    before = topk_kl(student, teacher).item()
    optimizer = torch.optim.Adam([student], lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        topk_kl(student, teacher).backward()
        optimizer.step()
    assert topk_kl(student, teacher).item() < 1e-3 * before
    p, q = teacher_logits.softmax(-1), student.detach().softmax(-1)
    torch.testing.assert_close(
        q.gather(-1, teacher.indices), p.gather(-1, teacher.indices), atol=5e-3, rtol=0.05
    )


def test_a_teacher_that_excludes_classes() -> None:
    logits = random_logits(2, 10).float()
    logits[:, 3:] = -torch.inf
    student = random_logits(2, 10, seed=2).float().requires_grad_()
    loss = topk_kl(student, topk_logits(logits, 5))
    loss.backward()
    wanted = functional.kl_div(student.log_softmax(-1), logits.softmax(-1), reduction="none").sum(-1).mean()
    torch.testing.assert_close(loss, wanted, atol=1e-5, rtol=1e-4)
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_what_does_not_fit() -> None:
    teacher = topk_logits(random_logits(4, 30), 5)
    for student in (torch.zeros(3, 30), torch.zeros(30), torch.zeros(()), torch.zeros(2, 4, 30)):
        with pytest.raises(ConfigError, match="do not fit the teacher's values"):
            topk_kl(student, teacher)
    with pytest.raises(ConfigError, match="reduction must be"):
        topk_kl(torch.zeros(4, 30), teacher, "batchmean")  # type: ignore[arg-type]
