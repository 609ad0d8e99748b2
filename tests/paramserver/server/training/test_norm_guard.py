"""One worker that has diverged does not undo the work of all."""

from __future__ import annotations

import math

import pytest
import torch
from raw_client import job_of
from torch import nn

from softs_fast.paramserver.rounds.events import Push, Share, Version
from softs_fast.paramserver.server.training.norms import NormGuard, norm_of
from softs_fast.paramserver.server.training.trainer import Trainer
from softs_fast.paramserver.wire.tensors import Contents


def test_a_long_push_is_scaled_to_a_multiple_of_the_median() -> None:
    guard = NormGuard(10.0)
    assert [guard.factor(1.0) for _ in range(8)] == [1.0] * 8
    assert guard.factor(9.0) == 1.0
    assert guard.factor(1000.0) == pytest.approx(0.01)


def test_the_first_pushes_and_zeros_are_no_measure() -> None:
    guard = NormGuard(10.0)
    assert guard.factor(1e-3) == guard.factor(1e6) == 1.0
    zeros = NormGuard(10.0)
    assert [zeros.factor(0.0) for _ in range(50)] == [1.0] * 50
    assert zeros.factor(5.0) == 1.0


def test_pushes_that_grow_raise_the_limit_slowly() -> None:
    """Half of all pushes are of a worker that has diverged."""
    guard = NormGuard(10.0)
    for _ in range(8):
        guard.factor(1.0)
    for _ in range(100):
        assert guard.factor(1.0) == 1.0
        assert guard.factor(1e9) <= 1.1e-7
    # All training may slow down or speed up over time.
    for _ in range(100):
        guard.factor(5.0)
    assert guard.limit == 50.0


def test_without_a_guard_any_push_is_taken() -> None:
    guard = NormGuard(0.0)
    assert [guard.factor(10.0**n) for n in range(30)] == [1.0] * 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [1.0, 1e30, 1e-30])
def test_a_norm_of_squares_beyond_the_dtype(dtype: torch.dtype, value: float) -> None:
    assert norm_of(torch.full((16,), value, dtype=dtype)) == pytest.approx(4 * value, rel=0.02)
    assert norm_of(torch.zeros(4, dtype=dtype)) == 0.0


def test_a_step_is_bounded_by_the_others() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(4, 1, bias=False)

    trainer = Trainer(job_of(model), norm_guard=10.0)
    share = Share(0, Push("w", Version(1, 0), 1, 0.5, 0), 1.0)
    before = trainer.contents()
    for _ in range(8):
        _, before = trainer.step([(share, Contents(torch.full((4,), 0.5)))], 1.0, 1.0, 0.0, before)
        assert trainer.scaled == []
    bad = Contents(torch.full((4,), 1e20))
    _, after = trainer.step([(share, bad)], 1.0, 1.0, 0.0, before)
    # SGD with a rate of 0.1, and ten times a norm of 1.
    assert math.isclose(float((after.parameters - before.parameters).norm()), 1.0, rel_tol=1e-4)
    assert [one.push.worker_id for one, _ in trainer.scaled] == ["w"]


def test_the_owner_is_told_of_a_worker_ever_more_rarely(serve, enter) -> None:
    """An honest worker may have longer pushes than all others: its lines must not be all that the status shows."""
    server = serve(rounds=1000)
    client = enter(server)
    for number in range(8 + 15):
        client.push(client.frame(1.0 if number < 8 else 1e6, version=(1, number)))
        assert client.pull(f"1.{number}", 20.0).status == 200
    lines = [one.text for one in server._running().driver.lines if "median norms" in one.text]
    assert [line.partition(": ")[2].partition(",")[0] for line in lines] == ["1 so far", "10 so far"]
    assert "--norm-guard" in lines[-1]
