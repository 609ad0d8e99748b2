"""The divergences of the loss in both directions, by chunks of rows, beside a definition in float64 that torch differentiates."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from softs_fast import ConfigError
from softs_fast.codecs import TopKLogits, topk_kl, topk_logits

N_CLASSES = 6
LEAD = (2, 3)
MASK = torch.tensor([[True, False, True], [True, True, False]])

modes = pytest.mark.parametrize("reverse", [0.0, 0.3, 1.0])


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many rows are computed at once."""

    def set_rows(n: int) -> None:
        monkeypatch.setattr("softs_fast.codecs.row_losses.chunk_rows", lambda row_bytes, device_type: n)

    return set_rows


def logits(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def teacher_of(full: Tensor, k: int) -> TopKLogits:
    """What topk_logits keeps, with the log-sum-exp in float64, so that only the loss rounds."""
    values, indices = full.topk(k)
    return TopKLogits(values, indices, full.logsumexp(-1))


def defined(student: Tensor, full: Tensor, k: int, temperature: float, reverse: float) -> Tensor:
    """The losses of rows by their definition, from both full distributions; torch derives the gradient."""
    indices = full.topk(k).indices
    groups = []
    for probabilities in ((full / temperature).softmax(-1), (student / temperature).softmax(-1)):
        top = probabilities.gather(-1, indices)
        rest = probabilities.scatter(-1, indices, 0).sum(-1, keepdim=True)
        groups.append(top if k == full.shape[-1] else torch.cat([top, rest], -1))
    p, q = groups
    forward, backward = (p * (p / q).log()).sum(-1), (q * (q / p).log()).sum(-1)
    return temperature**2 * ((1 - reverse) * forward + reverse * backward)


def gradient_of(loss: Tensor, student: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(loss, student, retain_graph=True)
    return gradient


@modes
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all rows", "mask"])
@pytest.mark.parametrize("k", [1, 4, N_CLASSES])
def test_each_mode_is_its_definition_for_chunks_of_any_size(
    chunked: Callable[[int], None], k: int, mask: Tensor | None, temperature: float, reverse: float
) -> None:
    full, student = logits(*LEAD, N_CLASSES, seed=1), logits(*LEAD, N_CLASSES).requires_grad_()
    teacher = teacher_of(full / temperature, k)
    rows = defined(student, full, k, temperature, reverse)
    kept = rows if mask is None else rows * mask
    n_counted = rows.numel() if mask is None else int(mask.sum())
    options: Any = {"mask": mask, "temperature": temperature, "reverse": reverse}
    wanted = {"none": kept, "sum": kept.sum(), "mean": kept.sum() / n_counted}
    for n, reduction in itertools.product((1, n_counted - 1, n_counted, n_counted + 1), wanted):
        chunked(n)
        loss = topk_kl(student, teacher, reduction, **options)  # type: ignore[arg-type]
        torch.testing.assert_close(loss, wanted[reduction], atol=1e-10, rtol=1e-9)
        # Rows of different weight, so that a gradient in the wrong row is seen.
        weights = torch.arange(1.0, 7.0, dtype=torch.float64).view(LEAD) if reduction == "none" else 1.0
        torch.testing.assert_close(
            gradient_of((loss * weights).sum(), student),
            gradient_of((wanted[reduction] * weights).sum(), student),
            atol=1e-10,
            rtol=1e-9,
        )


@modes
@pytest.mark.parametrize("n", [1, 3, 4, 5])
def test_gradients_are_those_of_the_loss(chunked: Callable[[int], None], n: int, reverse: float) -> None:
    chunked(n)
    student, mask = logits(*LEAD, N_CLASSES).requires_grad_(), MASK
    for k, temperature in ((2, 1.0), (2, 0.7), (N_CLASSES, 2.0)):
        teacher = topk_logits(logits(*LEAD, N_CLASSES, seed=1) / temperature, k)

        def loss(x: Tensor, teacher: TopKLogits = teacher, temperature: float = temperature) -> Tensor:
            return topk_kl(x, teacher, "none", mask=mask, temperature=temperature, reverse=reverse)

        assert torch.autograd.gradcheck(loss, [student])


@modes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all rows", "mask"])
def test_gradients_are_rounded_once_to_the_dtype_of_the_logits(
    mask: Tensor | None, dtype: torch.dtype, reverse: float
) -> None:
    teacher = topk_logits(logits(*LEAD, 50, seed=1), 5)
    student = logits(*LEAD, 50).to(dtype).requires_grad_()
    single = student.detach().float().requires_grad_()
    for scale in (1.0, 1024.0):
        losses = [topk_kl(x, teacher, mask=mask, reverse=reverse) * scale for x in (student, single)]
        assert losses[0].dtype is torch.float32
        assert torch.equal(*losses)
        grads = [gradient_of(loss, x) for loss, x in zip(losses, (student, single), strict=True)]
        assert grads[0].dtype is dtype
        assert torch.equal(grads[0], grads[1].to(dtype))
        assert grads[0].any()


def test_autocast_changes_no_bit() -> None:
    teacher = topk_logits(logits(*LEAD, 50, seed=1).float(), 5)
    student = logits(*LEAD, 50).float().requires_grad_()
    for reverse in (0.0, 0.5):
        with torch.autocast("cpu", torch.bfloat16):
            inside = topk_kl(student, teacher, reverse=reverse)
            grad_inside = gradient_of(inside, student)
        outside = topk_kl(student, teacher, reverse=reverse)
        assert torch.equal(inside, outside)
        assert torch.equal(grad_inside, gradient_of(outside, student))


@pytest.mark.parametrize("mask", [None, MASK], ids=["all rows", "mask"])
@pytest.mark.parametrize("n", [1, 4])
def test_logits_of_any_strides(chunked: Callable[[int], None], n: int, mask: Tensor | None) -> None:
    chunked(n)
    teacher = topk_logits(logits(*LEAD, 20, seed=1), 4)
    base = logits(*LEAD, 20)
    for strided in (
        functional.pad(base, (0, 0, 0, 1))[:, :-1],
        functional.pad(base, (0, 3))[..., :-3],
        base.transpose(0, 2).contiguous().transpose(0, 2),
    ):
        assert not strided.is_contiguous()
        student, dense = strided.detach().requires_grad_(), base.clone().requires_grad_()
        loss, wanted = topk_kl(student, teacher, mask=mask), topk_kl(dense, teacher, mask=mask)
        assert torch.equal(loss, wanted)
        assert torch.equal(gradient_of(loss, student), gradient_of(wanted, dense))


def test_one_row_without_an_axis_of_rows() -> None:
    teacher, student = topk_logits(logits(20, seed=1), 4), logits(20).requires_grad_()
    rows = TopKLogits(*(tensor.unsqueeze(0) for tensor in teacher))
    loss = topk_kl(student, teacher, "none")
    assert loss.shape == ()
    assert torch.equal(loss, topk_kl(student.unsqueeze(0), rows))
    assert gradient_of(loss, student).shape == (20,)
    assert topk_kl(student, teacher, mask=torch.tensor(False)).item() == 0


@modes
def test_a_row_that_does_not_count_may_hold_anything(reverse: float) -> None:
    teacher = topk_logits(logits(*LEAD, 20, seed=1), 4)
    student = logits(*LEAD, 20)
    student[~MASK] = torch.nan
    teacher.values[~MASK], teacher.lse[~MASK] = torch.inf, torch.nan
    student.requires_grad_()
    loss = topk_kl(student, teacher, "none", mask=MASK, reverse=reverse)
    gradient = gradient_of(loss.sum(), student)
    assert loss.isfinite().all()
    assert gradient.isfinite().all()
    assert (loss[~MASK] == 0).all()
    assert (gradient[~MASK] == 0).all()
    assert gradient[MASK].any()
    none = topk_kl(student, teacher, mask=torch.zeros_like(MASK), reverse=reverse)
    assert none.item() == 0
    assert not gradient_of(none, student).any()


def test_the_gradient_can_be_asked_for_again() -> None:
    teacher, student = topk_logits(logits(4, 20, seed=1), 4), logits(4, 20).requires_grad_()
    loss = topk_kl(student, teacher)
    first = torch.autograd.grad(loss, student, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, student, torch.tensor(2.0).double())[0], 2 * first)


@pytest.mark.parametrize("reverse", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 5, 30])
def test_grouping_never_makes_a_divergence_larger(k: int, reverse: float) -> None:
    student, full = logits(50, 30, scale=3), logits(50, 30, seed=1, scale=3)
    rows = topk_kl(student, teacher_of(full, k), "none", reverse=reverse)
    both = (full.log_softmax(-1), student.log_softmax(-1))
    log_a, log_b = both[::-1] if reverse else both
    whole = (log_a.exp() * (log_a - log_b)).sum(-1)
    assert (rows >= -1e-6).all()
    assert (rows <= whole + 1e-9).all()
    if k == 30:
        torch.testing.assert_close(rows, whole)
    assert topk_kl(full, teacher_of(full, k), "none", reverse=reverse).abs().max() < 1e-6


@pytest.mark.parametrize("top", [12.0, 16.0, 18.0, 40.0])
def test_a_tail_that_float32_cannot_hold_keeps_the_reverse_divergence_finite(top: float) -> None:
    full = torch.zeros(1, 100)
    full[:, :2] = top
    teacher = topk_logits(full, 2)
    student = torch.zeros(1, 100, requires_grad=True)
    loss = topk_kl(student, teacher, reverse=1.0)
    gradient = gradient_of(loss, student)
    q, mass = 0.98, 98 / (98 + 2 * torch.tensor(top).double().exp().item())
    # What the teacher's float32 lse can tell apart from no tail at all.
    resolution = 2**-24 * (teacher.lse.item() + 8)
    wanted = sum(a * torch.tensor(a / b).log().item() for a, b in ((q, max(mass, resolution)), (0.02, 1.0)))
    assert loss.item() == pytest.approx(wanted, abs=0.7 * resolution / max(mass, resolution) + 1e-3)
    assert (gradient[:, 2:] > 0).all()
    assert (gradient[:, :2] < 0).all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("reverse", [0.0, 1.0])
def test_classes_that_the_teacher_excludes_keep_both_divergences_finite(reverse: float) -> None:
    full = logits(2, 10).float()
    full[:, 3:] = -torch.inf
    student = logits(2, 10, seed=2).float().requires_grad_()
    loss = topk_kl(student, topk_logits(full, 5), reverse=reverse)
    gradient = gradient_of(loss, student)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert gradient[:, 3:].sum() > 0
    if not reverse:
        whole = functional.kl_div(student.log_softmax(-1), full.softmax(-1), reduction="none").sum(-1)
        torch.testing.assert_close(loss, whole.mean(), atol=1e-5, rtol=1e-4)


@modes
def test_a_student_without_a_tail(reverse: float) -> None:
    teacher = topk_logits(logits(2, 10).float(), 10)
    teacher = TopKLogits(teacher.values[:, :4], teacher.indices[:, :4], teacher.values[:, :4].logsumexp(-1))
    student = torch.full((2, 10), -torch.inf).scatter(1, teacher.indices, 0.0).requires_grad_()
    gradient = gradient_of(topk_kl(student, teacher, "sum", reverse=reverse), student)
    assert gradient.isfinite().all()
    assert (gradient.gather(1, teacher.indices) != 0).any()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mask": torch.ones(3, dtype=torch.bool)}, r"mask must be bool \[4\].*got torch.bool \[3\]"),
        ({"mask": torch.ones(4)}, r"mask must be bool \[4\].*got torch.float32"),
        ({"temperature": 0.0}, "temperature must be positive and finite, got 0.0"),
        ({"temperature": float("nan")}, "temperature must be positive and finite, got nan"),
        ({"temperature": float("inf")}, "temperature must be positive and finite, got inf"),
        ({"reverse": 1.5}, "reverse must be a weight from 0 to 1, got 1.5"),
        ({"reverse": -0.1}, "reverse must be a weight from 0 to 1, got -0.1"),
        ({"reverse": float("nan")}, "reverse must be a weight from 0 to 1, got nan"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], complaint: str) -> None:
    teacher = topk_logits(logits(4, 30), 5)
    with pytest.raises(ConfigError, match=complaint):
        topk_kl(torch.zeros(4, 30), teacher, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_student_that_is_sure_of_itself_has_gradients(dtype: torch.dtype) -> None:
    teacher = topk_logits(logits(5, 100), 4)
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


def test_descending_it_gives_the_student_the_teachers_classes() -> None:
    teacher_logits = logits(3, 40).float()
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


def test_what_does_not_fit() -> None:
    teacher = topk_logits(logits(4, 30), 5)
    for student in (torch.zeros(3, 30), torch.zeros(30), torch.zeros(()), torch.zeros(2, 4, 30)):
        with pytest.raises(ConfigError, match="do not fit the teacher's values"):
            topk_kl(student, teacher)
    with pytest.raises(ConfigError, match="reduction must be"):
        topk_kl(torch.zeros(4, 30), teacher, "batchmean")  # type: ignore[arg-type]
