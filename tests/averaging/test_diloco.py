"""DiLoCo on a linear model with constant gradients: every weight of every step is a known number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
from members import SaysWhenItReduces, descend, join, line, survived, values_of

from softs_fast.averaging import DiLoCo
from softs_fast.collectives import LinkStrategy
from softs_fast.errors import ConfigError


def trains(
    say: Callable[[Any], None], rank: int, size: int, folder: str, n_steps: int, options: dict[str, Any]
) -> list[list[float]]:
    """Weights after each step; the gradient of the first is 1 on rank 0 and 3 on rank 1, of the second 0 and 4."""
    model = line(10.0 + rank, 20.0 + rank)
    seen = []
    with join(rank, size, folder) as strategy:
        diloco = DiLoCo(model, strategy, **options)
        for _ in range(n_steps):
            descend(model, 1.0 + 2 * rank, 4.0 * rank)
            diloco.step()
            seen.append(values_of(model))
    return seen


# Weights of both ranks after each step, by hand: all begin at 10 and 20. Anchor minus weights has the mean 4 in both, as
# each step moves them by a mean of 2; then v = v / 2 + 4, anchor -= (4 + v / 2) / 2.
ONE_FRAGMENT = [
    [[9.0, 20.0], [7.0, 16.0]],
    [[7.0, 17.0], [7.0, 17.0]],
    [[6.0, 17.0], [4.0, 13.0]],
    [[3.5, 13.5], [3.5, 13.5]],
    [[2.5, 13.5], [0.5, 9.5]],
    [[-0.25, 9.75], [-0.25, 9.75]],
]
# The first weight takes its outer step after steps 1 and 3, the first time after a delta of one step only.
TWO_FRAGMENTS = [
    [[8.5, 20.0], [8.5, 16.0]],
    [[7.5, 17.0], [5.5, 17.0]],
    [[5.25, 17.0], [5.25, 13.0]],
    [[4.25, 13.5], [2.25, 13.5]],
]


@pytest.mark.parametrize(("n_fragments", "known"), [(1, ONE_FRAGMENT), (2, TWO_FRAGMENTS)])
def test_each_weight_of_each_step_is_the_known_number(tmp_path: Path, n_fragments: int, known: Any) -> None:
    options = {"every": 2, "lr": 0.5, "momentum": 0.5, "n_fragments": n_fragments}
    told = ranks.run(trains, 2, str(tmp_path), len(known), options)
    assert [list(pair) for pair in zip(*told, strict=True)] == known


SHAPES = {"a": (37, 5), "b": (11,), "c": ()}


def gradient(name: str, rank: int, step: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng([rank, step, *name.encode()]).standard_normal(SHAPES[name])


def trains_on_noise(
    say: Callable[[Any], None], rank: int, size: int, folder: str, every: int, n_rounds: int
) -> dict[str, Any]:
    model = torch.nn.Module()
    for name, shape in SHAPES.items():
        model.register_parameter(name, torch.nn.Parameter(torch.full(shape, 0.5)))
    with join(rank, size, folder) as strategy:
        diloco = DiLoCo(model, strategy, every=every, lr=0.7, momentum=0.9)
        for step in range(every * n_rounds):
            with torch.no_grad():
                for name, weight in model.named_parameters():
                    weight -= 0.01 * torch.from_numpy(np.asarray(gradient(name, rank, step))).float()
            diloco.step()
    return {name: weight.detach().numpy() for name, weight in model.named_parameters()}


def test_eight_rounds_are_equal_to_the_closed_form(tmp_path: Path) -> None:
    size, every, n_rounds = 3, 5, 8
    told = ranks.run(trains_on_noise, size, str(tmp_path), every, n_rounds)
    for name, shape in SHAPES.items():
        assert all(other[name].tobytes() == told[0][name].tobytes() for other in told)
        # g[k] is the mean of what the ranks have moved in round k. Each one moves the anchor by lr * (1 + momentum) in
        # its round, and by lr * momentum^(n + 1) after n more rounds.
        sums = [
            sum(
                0.01 * gradient(name, rank, step)
                for rank in range(size)
                for step in range(every * k, every * (k + 1))
            )
            / size
            for k in range(n_rounds)
        ]
        moved = sum(
            0.7 * sum_ * (1 + sum(0.9 ** (n + 1) for n in range(n_rounds - k))) for k, sum_ in enumerate(sums)
        )
        expected = np.full(shape, 0.5) - moved
        assert np.abs(told[0][name].astype(np.float64) - expected).max() < 1e-6


def resumes(say: Callable[[Any], None], rank: int, size: int, folder: str, path: str) -> tuple[Any, ...]:
    def go_on(model: torch.nn.Module, diloco: DiLoCo, n_steps: int) -> None:
        for _ in range(n_steps):
            descend(model, 1.0 + rank, 2.0 * rank)
            diloco.step()

    options: dict[str, Any] = {"every": 3, "lr": 0.5, "momentum": 0.5, "n_fragments": 2}
    with join(rank, size, folder) as strategy:
        model = line(1.0, 2.0)
        diloco = DiLoCo(model, strategy, **options)
        go_on(model, diloco, 4)  # in the middle of a round
        torch.save({"model": model.state_dict(), "diloco": diloco.state_dict()}, f"{path}/{rank}.pt")
        go_on(model, diloco, 5)
        saved = torch.load(f"{path}/{rank}.pt")
        other = line(0.0, 0.0)
        again = DiLoCo(other, strategy, **options)
        other.load_state_dict(saved["model"])
        again.load_state_dict(saved["diloco"])
        go_on(other, again, 5)
        assert again.counters == diloco.counters == {"steps": 9, "outer_steps": 6, "ranks": size}
    return values_of(model), values_of(other)


def test_it_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    for model, other in ranks.run(resumes, 2, str(tmp_path / "meet"), str(tmp_path)):
        assert model == other


def loses_a_rank(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    model = torch.nn.Module()
    model.register_parameter("many", torch.nn.Parameter(torch.zeros(3_000_000)))
    strategy: Any = join(rank, size, folder)
    if rank == 1:
        strategy = SaysWhenItReduces(strategy, 2, say)
    diloco = DiLoCo(model, strategy, every=2, lr=0.5, momentum=0.5)
    seen = []
    n_inner = 0
    for _ in range(8):
        with torch.no_grad():
            model.many -= float(2**rank)
        n_inner += 1
        if diloco.step():
            seen.append((strategy.size, float(model.many.detach().unique().item())))
    strategy.close()
    return n_inner, seen


# Into the middle of the reduction, which takes some 30 ms, at different places.
@pytest.mark.parametrize("delay_s", [pytest.param(0.0, marks=pytest.mark.full), 0.012])
def test_a_rank_that_is_killed_in_a_reduction_costs_no_training_step(tmp_path: Path, delay_s: float) -> None:
    n_inner, seen = survived(loses_a_rank, tmp_path, delay_s)
    assert n_inner == 8
    anchor = velocity = 0.0
    for size, value in seen:
        mean = np.mean([2 * 2.0**rank for rank in ([0, 1, 2] if size == 3 else [0, 2])])
        velocity = velocity / 2 + mean
        anchor -= 0.5 * (mean + velocity / 2)
        assert value == pytest.approx(anchor, rel=1e-5)
    sizes = [size for size, _ in seen]
    assert sizes[0] == 3
    assert sizes[2:] == [2, 2]


def counts_differently(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    model = line(1.0)
    with join(rank, size, folder) as strategy:
        diloco = DiLoCo(model, strategy, every=2)
        if rank == 1:
            state = diloco.state_dict()
            diloco.load_state_dict({**state, "n_steps": 2})
        diloco.step()
        with pytest.raises(ConfigError) as raised:
            diloco.step()
        assert values_of(model) == [1.0]
    return str(raised.value)


def test_ranks_at_different_steps_get_an_error(tmp_path: Path) -> None:
    told = ranks.run(counts_differently, 2, str(tmp_path))
    assert all('"w0 at step 2": float32 [1] on rank 0; absent on rank 1' in text for text in told)


def trains_in_16_bits(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    model = torch.nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    torch.nn.init.ones_(model.weight)
    norm = torch.nn.BatchNorm1d(1)
    model.add_module("norm", norm)
    with join(rank, size, folder) as strategy:
        diloco = DiLoCo(model, strategy, every=1, lr=0.1, momentum=0.0)
        with torch.no_grad():
            norm.num_batches_tracked += rank
        for _ in range(4):
            with torch.no_grad():
                model.weight -= 0.0078125
            diloco.step()
    anchor = diloco.state_dict()["anchor"]["weight"]
    return anchor.dtype, anchor[0, 0].item(), model.weight[0, 0].item(), norm.num_batches_tracked.item()


def test_the_anchor_of_16_bit_weights_keeps_what_they_would_lose(tmp_path: Path) -> None:
    for dtype, anchor, weight, n_batches in ranks.run(trains_in_16_bits, 2, str(tmp_path)):
        assert dtype is torch.float32
        # Each step moves the anchor by less than half of what bfloat16 tells apart at 1, and the moves add up.
        assert anchor < 0.998
        assert weight == torch.tensor(anchor).bfloat16().item()
        assert n_batches == 1


class NoGroup(LinkStrategy):
    """A strategy of one rank that needs no group."""

    size = 1

    def broadcast_tensor(self, tensor: torch.Tensor, root: int) -> None:
        pass


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every": 0}, "every is 0"),
        ({"lr": 0.0}, r"lr is 0\.0"),
        ({"momentum": 1.0}, r"momentum 1\.0"),
        ({"n_fragments": 3}, "n_fragments is 3; with every=100 and 2 parameters it is from 1 to 2"),
        ({"n_fragments": 2, "every": 1}, "it is from 1 to 1"),
        ({"buffers": "best"}, 'buffers is "best"'),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DiLoCo(line(1.0, 2.0), NoGroup(), **arguments)


def test_a_state_of_another_model_is_refused_and_changes_nothing() -> None:
    diloco = DiLoCo(line(1.0, 2.0), NoGroup())
    state = DiLoCo(line(5.0), NoGroup()).state_dict()
    with pytest.raises(ConfigError, match=r'anchor of "w1": this model has \[1\], the state nothing'):
        diloco.load_state_dict(state)
    assert diloco.state_dict()["anchor"]["w0"].item() == 1.0


def test_parts_have_about_the_same_size() -> None:
    model = torch.nn.Module()
    for number, size in enumerate([100, 1, 1, 98, 50, 50, 300]):
        model.register_parameter(f"w{number}", torch.nn.Parameter(torch.zeros(size)))
    for n in (1, 2, 3, 7):
        diloco = DiLoCo(model, NoGroup(), every=100, n_fragments=n)
        assert len(diloco._fragments) == n
        names = [name for part in diloco._fragments.values() for name in part]
        assert sorted(names) == sorted(f"w{number}" for number in range(7))
    sizes = [
        sum(model.get_parameter(name).numel() for name in part)
        for part in DiLoCo(model, NoGroup(), n_fragments=3)._fragments.values()
    ]
    assert sizes == [200, 100, 300]
