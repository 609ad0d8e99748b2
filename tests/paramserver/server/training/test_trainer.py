"""Pushes become a step: bits, rates, buffers, what is not finite."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from raw_client import job_of, small_model
from torch import nn, optim

from softs_fast.errors import ConfigError
from softs_fast.paramserver.rounds.events import Push, Share, Version
from softs_fast.paramserver.server.training.plain import decode_state, first_difference
from softs_fast.paramserver.server.training.trainer import Trainer, mean_of
from softs_fast.paramserver.wire.tensors import Contents, first_not_finite


def share(rank: int, weight: float, samples: int = 1) -> Share:
    return Share(rank, Push(f"w{rank}", Version(1, 0), samples, 0.5, rank), weight)


def pushes(trainer: Trainer, *parts: tuple[float, float]) -> list[tuple[Share, Contents]]:
    n = trainer.manifest.n_parameters
    return [(share(i, weight), Contents(torch.full((n,), value))) for i, (weight, value) in enumerate(parts)]


def test_sums_are_float64_and_cast_once() -> None:
    vectors = [torch.tensor([1e8, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor([-1e8, 1.0])]
    assert mean_of([(1.0, one) for one in vectors], 1.0).tolist() == [1.0, 3.0]
    assert (vectors[0] + vectors[1] + vectors[2]).tolist() == [0.0, 3.0], "float32 loses it"


@pytest.mark.parametrize("n", [0, 1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 200_000])
def test_pieces_have_the_bits_of_the_whole(n: int) -> None:
    torch.manual_seed(n)
    parts = [(factor, torch.randn(n)) for factor in (0.5, 0.3, 0.2)]
    whole = torch.zeros(n, dtype=torch.float64)
    for factor, vector in parts:
        whole += vector.double() * factor
    assert torch.equal(mean_of(parts, 1.0), whole.float())


@pytest.mark.parametrize("n", [1, (1 << 15) - 1, (1 << 15) + 1, 200_000])
def test_equal_pushes_of_bfloat16_have_the_same_bits_with_and_without_native_modules(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    torch.manual_seed(n)
    parts = [(8.0, torch.randn(n).to(torch.bfloat16)) for _ in range(3)]
    native = mean_of(parts, 24.0)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "softs_fast.kernels", None)
        assert torch.equal(mean_of(parts, 24.0), native)
    exact = sum((one.double() for _, one in parts), torch.zeros(n, dtype=torch.float64)) / 3
    assert (native - exact).abs().max() < 1e-6
    weighted = [(factor, one) for factor, (_, one) in zip((0.5, 0.25, 0.25), parts, strict=True)]
    exact = sum(one.double() * factor for factor, one in weighted)
    assert torch.equal(mean_of(weighted, 1.0), exact.float()), "other factors: float64"


def test_a_step_is_one_of_the_optimizer() -> None:
    trainer = Trainer(job_of(small_model, optimizer=lambda p: optim.Adam(p, lr=0.01)))
    module = small_model()
    optimizer = optim.Adam(module.parameters(), lr=0.02)
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 1.5)
    optimizer.step()
    bad, after = trainer.step(pushes(trainer, (0.5, 1.0), (0.5, 2.0)), 2.0, 1.0, 0.0, trainer.contents())
    assert bad is None
    expected = torch.cat([one.detach().reshape(-1) for one in module.parameters()])
    assert torch.equal(after.parameters, expected)
    assert decode_state(trainer.state()["optimizer"])["param_groups"][0]["lr"] == 0.01, (
        "the factor is of one step"
    )


def test_the_schedule_goes_by_versions() -> None:
    def schedule(optimizer: optim.Optimizer) -> Any:
        return optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    trainer = Trainer(job_of(schedule=schedule))
    before = trainer.contents()
    _, first = trainer.step(pushes(trainer, (1.0, 1.0)), 4.0, 1.0, 0.0, before)
    _, second = trainer.step(pushes(trainer, (1.0, 1.0)), 4.0, 1.0, 0.0, first)
    assert torch.allclose(first.parameters, before.parameters - 0.4)
    assert torch.allclose(second.parameters, first.parameters - 0.2)


def test_clipping_bounds_each_push() -> None:
    trainer = Trainer(job_of())
    before = trainer.contents()
    n = trainer.manifest.n_parameters
    _, after = trainer.step(pushes(trainer, (0.5, 100.0), (0.5, 0.0)), 1.0, 1.0, 1.0, before)
    assert torch.allclose(after.parameters, before.parameters - 0.1 * 0.5 / n**0.5)


@pytest.mark.parametrize("value", [3e38, float("nan")])
def test_what_is_not_finite_changes_nothing(value: float) -> None:
    trainer = Trainer(job_of())
    before = trainer.contents()
    parts = pushes(trainer, (1.0, value), (1.0, value))
    bad, after = trainer.step(parts, 1.0, 1.0, 0.0, before)
    assert bad == "the gradient of 0.weight"
    assert after is before
    assert torch.equal(trainer.contents().parameters, before.parameters)


def test_buffers_are_averaged_by_samples_and_counters_are_the_greatest() -> None:
    trainer = Trainer(job_of())
    manifest = trainer.manifest
    given = [(share(0, 0.25, 1), 4.0, 7), (share(1, 0.75, 3), 8.0, 5)]
    parts = [
        (
            one,
            Contents(
                torch.zeros(manifest.n_parameters),
                torch.full((manifest.n_floats,), value),
                torch.full((manifest.n_integers,), counter),
            ),
        )
        for one, value, counter in given
    ]
    _, after = trainer.step(parts, 1.0, 1.0, 0.0, trainer.contents())
    assert after.floats is not None
    assert after.integers is not None
    assert set(after.floats.tolist()) == {7.0}
    assert set(after.integers.tolist()) == {7}
    _, without = trainer.step(pushes(trainer, (1.0, 0.0)), 1.0, 1.0, 0.0, after)
    assert without.floats is not None
    assert torch.equal(without.floats, after.floats), "pushes without buffers leave them"


def test_frozen_parameters_do_not_travel() -> None:
    def model() -> nn.Module:
        module = small_model()
        module[0].weight.requires_grad_(False)  # type: ignore[index]
        return module

    trainer = Trainer(job_of(model))
    frozen = trainer.module[0].weight.clone()  # type: ignore[index]
    trainer.step(pushes(trainer, (1.0, 1.0)), 1.0, 1.0, 0.0, trainer.contents())
    assert torch.equal(trainer.module[0].weight, frozen)  # type: ignore[index]


def test_a_state_of_another_model_is_refused() -> None:
    state = Trainer(job_of()).state()
    with pytest.raises(ConfigError, match="another model or optimizer"):
        Trainer(job_of(lambda: nn.Linear(2, 2)), state)


def test_evaluation_leaves_the_mode() -> None:
    seen = []

    def evaluate(module: nn.Module) -> float:
        seen.append((module.training, torch.is_grad_enabled()))
        return 0.5

    trainer = Trainer(job_of(evaluate=evaluate))
    assert trainer.evaluate() == 0.5
    assert seen == [(False, False)]
    assert trainer.module.training
    assert Trainer(job_of()).evaluate() is None


# --- Parameters without a gradient ---


def partial(trainer: Trainer, rank: int, *present: bool) -> tuple[Share, Contents]:
    vector = torch.ones(trainer.manifest.n_parameters)
    for part, is_there in zip(trainer.manifest.parameter_slices, present, strict=True):
        vector[part] *= is_there
    return share(rank, 1.0), Contents(vector, present=present)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
        lambda parameters: optim.Adam(parameters, lr=0.1),
        lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    ],
)
def test_a_parameter_without_a_gradient_on_all_workers_stays(make: Any) -> None:
    """Decay and momentum move one that has a gradient of zeros; torch alone leaves it, and its state, as it was."""
    trainer = Trainer(job_of(lambda: nn.Linear(2, 2), optimizer=make))
    alone = nn.Linear(2, 2)
    alone.load_state_dict(trainer.module.state_dict())
    optimizer = make(list(alone.parameters()))
    for has_bias in ((True, True), (False, False), (False, True), (False, False)):
        parts = [partial(trainer, rank, True, one) for rank, one in enumerate(has_bias)]
        assert trainer.step(parts, 1.0, 2.0, 0.0, trainer.contents())[0] is None
        alone.weight.grad = torch.ones(2, 2)
        alone.bias.grad = torch.full((2,), sum(has_bias) / 2) if any(has_bias) else None
        optimizer.step()
        assert torch.equal(trainer.contents().parameters, torch.cat([alone.weight.flatten(), alone.bias]))


# --- What is not finite changes nothing ---


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda parameters: optim.SGD(parameters, lr=1e5, momentum=0.9), 3e38),
        # The square overflows: the step is 0, and so is every later one.
        (lambda parameters: optim.Adam(parameters, lr=0.1), 1e30),
    ],
)
def test_a_step_that_is_not_finite_leaves_no_trace(make: Any, value: float) -> None:
    """Copies of one step hold those of the next, but not once the optimizer has got them back."""

    def schedule(optimizer: optim.Optimizer) -> Any:
        return optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    trainer, other = (Trainer(job_of(optimizer=make, schedule=schedule)) for _ in range(2))
    manifest = trainer.manifest
    n_floats, n_integers = manifest.n_floats, manifest.n_integers
    for one in (1.0, value, 1.0, value, value, -2.0):
        before = trainer.contents()
        buffers = (torch.full((n_floats,), 5.0), torch.full((n_integers,), 5)) if one == value else ()
        push = share(0, 1.0), Contents(torch.full((manifest.n_parameters,), one), *buffers)
        bad, after = trainer.step([push], 1.0, 1.0, 0.0, before)
        assert (bad is None) is (one != value)
        if bad is not None:
            assert after is before
        else:
            other.step([push], 1.0, 1.0, 0.0, other.contents())
            assert not torch.equal(after.parameters, before.parameters)
        assert first_difference(list(other.state().values()), list(trainer.state().values()), "state") is None


def test_an_undone_step_restores_every_bit_of_float64() -> None:
    trainer = Trainer(
        job_of(lambda: nn.Linear(2, 2, dtype=torch.float64), optimizer=lambda p: optim.SGD(p, lr=1e308))
    )
    weight = trainer.module.weight.detach().clone()
    assert trainer.step(pushes(trainer, (1.0, 1e30)), 1.0, 1.0, 0.0, trainer.contents())[0] == "weight"
    assert torch.equal(trainer.module.weight, weight)


def test_a_mask_of_infinities_is_a_buffer_as_any_other() -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    trainer = Trainer(job_of(Masked))
    before = trainer.contents()
    part = Contents(torch.ones(trainer.manifest.n_parameters), before.floats, before.integers)
    bad, after = trainer.step([(share(0, 1.0), part), (share(1, 1.0), part)], 1.0, 2.0, 0.0, before)
    assert bad is None
    assert after.floats is not None
    assert after.floats.tolist() == [0.0, -torch.inf]
    assert first_not_finite(part, trainer.manifest, before.floats) is None
    wrong = Contents(part.parameters, torch.tensor([torch.inf, -torch.inf]), part.integers)
    assert first_not_finite(wrong, trainer.manifest, before.floats) == "mask"


def test_a_mean_is_rounded_once() -> None:
    """n g / N, where n / N is no float64 and 1 / N no float32."""
    torch.manual_seed(0)
    gradients = [torch.randn(100_000).to(torch.bfloat16) for _ in range(3)]
    equal = (gradients[0].float() + gradients[1].float() + gradients[2].float()).double() / 3
    assert torch.equal(mean_of([(5, one) for one in gradients], 15), equal.float())
    # The mean lies in the middle of two float32, and the even one is the upper one. With weights of n / N, which are
    # rounded down, it would lie below the middle.
    lower, upper = torch.tensor([1 + 2.0**-23]), torch.tensor([1 + 2.0**-22])
    parts = [lower] * 3 + [upper] * 3
    assert mean_of([(5, one) for one in parts], 30).item() == upper.item()
    assert mean_of([(5 / 30, one) for one in parts], 1.0).item() == lower.item()


def test_tensors_that_a_job_replaces_are_refused_by_name() -> None:
    """The optimizer would step those of the start, and workers would get the others."""
    trainer = Trainer(job_of(evaluate=lambda module: float(module.bfloat16() is module)))
    trainer.evaluate()
    with pytest.raises(
        ConfigError, match=r'parameter "0.weight" of the server was replaced or became torch.bfloat16'
    ):
        trainer.step(pushes(trainer, (1.0, 1.0)), 1.0, 1.0, 0.0, trainer.contents())
    trainer = Trainer(job_of())
    trainer.module.load_state_dict(small_model().state_dict(), assign=True)
    with pytest.raises(ConfigError, match=r'parameter "0.weight" of the server was replaced'):
        trainer.step(pushes(trainer, (1.0, 1.0)), 1.0, 1.0, 0.0, trainer.contents())


def test_a_moment_of_a_scalar_that_overflows_is_taken_back() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

    trainer = Trainer(job_of(Scaled, optimizer=lambda parameters: optim.Adam(parameters, lr=0.1)))
    before = trainer.contents()
    bad, _ = trainer.step(pushes(trainer, (1.0, 1e30)), 1.0, 1.0, 0.0, before)
    assert bad == "exp_avg_sq of scale"
    assert trainer.step(pushes(trainer, (1.0, 1.0)), 1.0, 1.0, 0.0, before)[0] is None
    assert trainer.module.scale.item() == pytest.approx(0.9)
