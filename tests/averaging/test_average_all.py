"""The mean of all ranks: its bits, its cadence, its momentum, buffers, and deaths in the middle of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
from members import SaysWhenItReduces, descend, join, line, survived, values_of

from softs_fast.averaging import AverageAll
from softs_fast.collectives import LinkStrategy
from softs_fast.errors import ConfigError, PeerLost


def random_weights(seed: int, dtype: torch.dtype, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(4 * torch.randn(size, generator=generator))
    return (torch.randn(size, generator=generator) * scale).to(dtype)


def averages(say: Callable[[Any], None], rank: int, size: int, folder: str, dtype: torch.dtype) -> bytes:
    model = torch.nn.Module()
    model.register_parameter("w", torch.nn.Parameter(random_weights(rank, dtype, 50_000)))
    model.register_parameter("b", torch.nn.Parameter(random_weights(100 + rank, dtype, 3)))
    with join(rank, size, folder) as strategy:
        AverageAll(model, strategy, every=1).step()
    return torch.cat([weight.detach() for weight in model.parameters()]).view(torch.uint8).numpy().tobytes()


def neighbour(values: torch.Tensor, limit: float) -> torch.Tensor:
    """The next number of the dtype in a direction."""
    if values.dtype is not torch.float16:
        return torch.nextafter(values, torch.full_like(values, limit))
    return torch.from_numpy(np.nextafter(values.numpy(), np.float16(limit)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_mean_is_that_of_float64_and_has_the_same_bits_on_all_ranks(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    size = 3
    told = ranks.run(averages, size, str(tmp_path), dtype)
    assert told[0] == told[1] == told[2]
    found = torch.frombuffer(bytearray(told[0]), dtype=dtype)
    inputs = [
        torch.cat([random_weights(rank, dtype, 50_000), random_weights(100 + rank, dtype, 3)]).double()
        for rank in range(size)
    ]
    exact = torch.stack(inputs).mean(0)
    below, above = (neighbour(found, limit).double() for limit in (-math.inf, math.inf))
    assert bool(((below <= exact) & (exact <= above)).all())


def counts_steps(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[list[float]]:
    model = line(float(rank), 10.0 * rank)
    seen = []
    with join(rank, size, folder) as strategy:
        average = AverageAll(model, strategy, every=3)
        for step in range(1, 7):
            descend(model, -1.0, 0.0)
            assert average.step() == (step % 3 == 0)
            seen.append(values_of(model))
        state = average.state_dict()
        other = AverageAll(model, strategy, every=3)
        other.load_state_dict(state)
        assert other.counters == average.counters == {"steps": 6, "averaged": 2, "ranks": size}
    return seen


def test_every_third_step_averages(tmp_path: Path) -> None:
    told = ranks.run(counts_steps, 2, str(tmp_path))
    means = [[3.5, 5.0], [4.5, 5.0], [5.5, 5.0], [6.5, 5.0]]
    assert told[0] == [[1.0, 0.0], [2.0, 0.0], *means]
    assert told[1] == [[2.0, 10.0], [3.0, 10.0], *means]


def blends(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[list[float]]:
    model = line(4.0 * rank)
    seen = []
    with join(rank, size, folder) as strategy:
        average = AverageAll(model, strategy, every=1, momentum=0.75)
        for _ in range(3):
            average.step()
            seen.append(values_of(model))
    return seen


def test_momentum_keeps_a_share_of_the_own_weights(tmp_path: Path) -> None:
    told = ranks.run(blends, 2, str(tmp_path))
    assert told[0] == [[0.5], [0.875], [1.15625]]
    assert told[1] == [[3.5], [3.125], [2.84375]]


class Net(torch.nn.Module):
    """Tied weights, float and integer buffers, a scalar."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.one = torch.nn.Linear(2, 2, bias=False)
        self.two = torch.nn.Linear(2, 2, bias=False)
        self.two.weight = self.one.weight
        self.norm = torch.nn.BatchNorm1d(2)
        self.scale = torch.nn.Parameter(torch.tensor(float(rank)))
        self.register_buffer("seen", torch.tensor([rank == 1, False]))
        with torch.no_grad():
            self.one.weight.fill_(rank)
            self.norm.running_mean.fill_(rank)
            self.norm.num_batches_tracked.fill_(10 * rank)


def averages_a_net(say: Callable[[Any], None], rank: int, size: int, folder: str, rule: Any) -> list[Any]:
    net = Net(rank)
    held = net.one.weight
    optimizer = torch.optim.Adam(net.parameters())
    with join(rank, size, folder) as strategy:
        average = AverageAll(net, strategy, every=1, buffers=rule)
        average.step()
    assert net.one.weight is held is net.two.weight
    assert optimizer.param_groups[0]["params"][0] is net.scale
    norm = net.norm
    return [
        net.two.weight[0, 0].item(),
        net.scale.item(),
        norm.running_mean[1].item(),
        norm.num_batches_tracked.item(),
        net.seen.tolist(),
    ]


def test_buffers_by_rule_and_tied_weights_once(tmp_path: Path) -> None:
    told = ranks.run(averages_a_net, 2, str(tmp_path / "a"), "average")
    assert told == [[0.5, 0.5, 0.5, 10, [True, False]]] * 2
    told = ranks.run(averages_a_net, 2, str(tmp_path / "o"), "own")
    assert told == [[0.5, 0.5, 0.0, 0, [False, False]], [0.5, 0.5, 1.0, 10, [True, False]]]


def loses_a_rank(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    model = line(*([0.0] * 3))
    model.register_parameter("many", torch.nn.Parameter(torch.full((3_000_000,), float(2**rank))))
    strategy: Any = join(rank, size, folder)
    if rank == 1:
        strategy = SaysWhenItReduces(strategy, 2, say)
    average = AverageAll(model, strategy, every=1)
    means = []
    for _ in range(3):
        average.step()
        means.append((strategy.size, float(model.many.detach().unique().item())))
        with torch.no_grad():
            model.many += float(2**rank)
    strategy.close()
    return means


# Into the middle of the reduction, which takes some 30 ms, at different places.
@pytest.mark.parametrize("delay_s", [pytest.param(0.0, marks=pytest.mark.full), 0.012])
def test_a_rank_that_is_killed_in_a_reduction_costs_only_its_repetition(
    tmp_path: Path, delay_s: float
) -> None:
    seen = survived(loses_a_rank, tmp_path, delay_s)
    sizes = [size for size, _ in seen]
    # With the victim, if it had sent everything before it died; the next one is without it in any case.
    value = 0.0
    for round_, (size, mean) in enumerate(seen):
        members = [0, 1, 2] if size == 3 else [0, 2]
        step = np.mean([2.0**rank for rank in members])
        expected = step if round_ == 0 else value + step
        assert mean == pytest.approx(expected, abs=1e-5)
        value = mean
    assert sizes[0] == 3
    assert sizes[2] == 2


def raises_without_rebuild(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    strategy = LinkStrategy(timeout_s=30).init(rank, size, folder)
    model = line(float(rank))
    average = AverageAll(model, strategy, every=1)
    average.step()
    if rank == 1:
        strategy.give_up("it leaves")
        return None
    descend(model, 1.0)
    with pytest.raises(PeerLost):
        average.step()
    strategy.close()
    return values_of(model)


def test_without_rebuild_a_death_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    assert ranks.run(raises_without_rebuild, 2, str(tmp_path))[0] == [-0.5]


class FailsLater:
    """A group of one rank that fails in its third reduction."""

    size = 1

    def __init__(self) -> None:
        self.n_calls = 0

    def all_reduce_gradients(self, gradients: dict[str, torch.Tensor], op: str) -> None:
        self.n_calls += 1
        if self.n_calls == 3:
            raise PeerLost("it failed")
        for tensor in gradients.values():
            tensor.fill_(100)

    def average_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        for tensor in tensors.values():
            tensor.fill_(-1)  # undefined after a failure
        self.all_reduce_gradients(tensors, "mean")


def test_parts_that_were_averaged_before_a_failure_are_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softs_fast.averaging.reduction._PART_BYTES", 4)
    model = line(1.0, 2.0, 3.0, 4.0)
    strategy = FailsLater()
    average = AverageAll(model, strategy, every=1)  # type: ignore[arg-type]
    with pytest.raises(PeerLost, match="it failed"):
        average.step()
    assert values_of(model) == [1.0, 2.0, 3.0, 4.0]
    average.average()
    assert values_of(model) == [100.0] * 4
    assert strategy.n_calls == 7, "as many parts as weights"


def test_parameters_that_share_memory_keep_their_share_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softs_fast.averaging.reduction._PART_BYTES", 4)
    matrix = torch.ones(2, 2)
    model = torch.nn.Module()
    for name, values in {"a": matrix, "b": matrix.t(), "c": torch.ones(1)}.items():
        model.register_parameter(name, torch.nn.Parameter(values))
    average = AverageAll(model, FailsLater(), every=1, momentum=0.5)  # type: ignore[arg-type]
    with pytest.raises(PeerLost, match="it failed"):
        average.step()
    assert matrix.tolist() == [[1.0, 1.0], [1.0, 1.0]], "set back"
    average.step()
    assert matrix.tolist() == [[50.5, 50.5], [50.5, 50.5]]


def models_differ(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    model = line(*([float(rank)] * (1 + rank)))
    with join(rank, size, folder) as strategy:
        with pytest.raises(ConfigError) as raised:
            AverageAll(model, strategy, every=1).step()
        return str(raised.value), values_of(model)


def test_models_that_differ_are_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    told = ranks.run(models_differ, 2, str(tmp_path))
    assert all('"w1": absent on rank 0' in text for text, _ in told)
    assert [values for _, values in told] == [[0.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every": 0}, "every is 0"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"momentum": -0.1}, r"momentum is -0\.1"),
        ({"buffers": "best"}, 'buffers is "best"; known are average, own'),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        AverageAll(line(1.0), LinkStrategy(), **arguments)
