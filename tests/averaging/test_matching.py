"""What ranks average: the tensors that models have now, alike on all ranks, or an error of all with a name."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from meshes import shard_of_two
from thread_ranks import run_threads
from torch import nn
from torch.nn.utils import parametrizations, prune

from softs_fast.averaging import AverageAll, DiLoCo
from softs_fast.averaging.matching import Report, decide
from softs_fast.errors import ConfigError

Averager = Callable[[nn.Module, Any], Any]

AVERAGERS: dict[str, Averager] = {
    "all": lambda model, strategy: AverageAll(model, strategy, every=1),
    "diloco": lambda model, strategy: DiLoCo(model, strategy, every=1, lr=1.0, momentum=0.0),
}


def report(**parts: dict[str, str]) -> Report:
    return {"trained": {}, "frozen": {}, "buffers": {}, "refused": {}, "copied": {}} | parts


W = "float32 [2]"


def test_what_a_rank_trains_is_averaged_by_all() -> None:
    agreed = decide([report(trained={"w": W}, frozen={"f": W, "g": W}), report(frozen={"w": W, "f": W})])
    assert (agreed.weights, agreed.frozen, agreed.left_out) == (["w"], ["f"], {})


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        (report(trained={"w": W}), report(), f'parameter "w": {W} on rank 0; absent on rank 1'),
        (
            report(trained={"w": W}),
            report(trained={"w": "float32 [3]"}),
            f'parameter "w": {W} on rank 0; float32 [3] on rank 1',
        ),
        (
            report(trained={"w": f"{W}, shard S(0) 0/2"}),
            report(trained={"w": f"{W}, shard S(0) 1/2"}),
            f'parameter "w": {W}, shard S(0) 0/2 on rank 0; {W}, shard S(0) 1/2 on rank 1; '
            "give an averager the ranks that have the same shard",
        ),
        (
            report(trained={"w": W}),
            report(frozen={"w": "x"}, refused={"w": 'parameter "w" is odd'}),
            'parameter "w" is odd, on rank 1',
        ),
    ],
)
def test_parameters_that_differ_are_an_error_that_names_them(one: Report, other: Report, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        decide([one, other])
    assert str(raised.value) == text


def test_buffers_that_differ_are_left_out() -> None:
    odd = report(
        buffers={"same": W, "grown": "float32 [3]", "odd": "x"}, refused={"odd": 'buffer "odd" is odd'}
    )
    agreed = decide([report(buffers={"same": W, "grown": W, "odd": W, "u": W}, copied={"same": ""}), odd])
    assert (agreed.buffers, agreed.copied) == ([], ["same"])
    assert agreed.left_out == {
        "grown": f'buffer "grown": {W} on rank 0; float32 [3] on rank 1',
        "odd": 'buffer "odd" is odd, on rank 1',
        "u": f'buffer "u": {W} on rank 0; absent on rank 1',
    }


def _assign(model: nn.Module) -> None:
    model.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()}, assign=True)


def _move(model: nn.Module) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _tie(model: Any) -> None:
    model.head.weight = model.body.weight


def _empty(model: nn.Module) -> None:
    values = copy.deepcopy(model.state_dict())
    model.to_empty(device="cpu")
    model.load_state_dict(values)


CHANGES: dict[str, Callable[[Any], object]] = {
    "nothing": lambda model: None,
    "bfloat16": lambda model: model.bfloat16(),
    "double": lambda model: model.double(),
    "assigned": _assign,
    "moved": _move,
    "shared": lambda model: model.share_memory(),
    "tied": _tie,
    "emptied": _empty,
    "assigned buffer": lambda model: setattr(model, "mean", model.mean.clone()),
    "a layer more": lambda model: model.add_module("more", nn.Linear(2, 2)),
    "a larger layer": lambda model: setattr(model, "head", nn.Linear(2, 5)),
    "a layer less": lambda model: delattr(model, "head"),
}


def net() -> Any:
    model: Any = nn.Module()
    model.body, model.head = nn.Linear(2, 2), nn.Linear(2, 2)
    model.register_buffer("mean", torch.zeros(2))
    return model


@pytest.mark.parametrize("averager", AVERAGERS)
@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_were_replaced_are_averaged(averager: str, change: str) -> None:
    def rank(strategy: Any) -> Any:
        model = net()
        average = AVERAGERS[averager](model, strategy)
        CHANGES[change](model)
        for _ in range(2):
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    tensor.fill_(float(strategy.rank))
            average.step()
        return model.state_dict()

    for state in run_threads(rank):
        assert all(tensor.eq(0.5).all() for tensor in state.values()), state


@pytest.mark.parametrize("averager", AVERAGERS)
def test_only_what_is_trained_is_averaged_and_what_was_frozen_once_more(averager: str) -> None:
    def rank(strategy: Any) -> list[float]:
        model = net()
        model.body.requires_grad_(False)
        average = AVERAGERS[averager](model, strategy)
        seen = []
        for trained in (False, True, True, False, False):
            model.body.requires_grad_(trained)
            with torch.no_grad():
                model.body.weight.fill_(float(strategy.rank))
            average.step()
            seen.append(float(model.body.weight[0, 0].detach()))
        return seen

    assert run_threads(rank) == [[0.0, 0.5, 0.5, 0.5, 0.0], [1.0, 0.5, 0.5, 0.5, 1.0]]


@pytest.mark.parametrize("averager", AVERAGERS)
def test_a_model_of_which_nothing_is_trained_yet(averager: str) -> None:
    def rank(strategy: Any) -> float:
        model = net().requires_grad_(False)
        average = AVERAGERS[averager](model, strategy)
        average.step()
        model.requires_grad_(True)
        with torch.no_grad():
            model.body.weight.fill_(float(strategy.rank))
        average.step()
        return float(model.body.weight[0, 0].detach())

    assert run_threads(rank) == [0.5, 0.5]


SPECTRAL: dict[str, Callable[[nn.Module], nn.Module]] = {
    "parametrization": parametrizations.spectral_norm,
    "hook": nn.utils.spectral_norm,
}


@pytest.mark.parametrize("averager", AVERAGERS)
@pytest.mark.parametrize("kind", SPECTRAL)
def test_vectors_of_spectral_norm_stay_those_of_one_rank(averager: str, kind: str) -> None:
    """Each rank has found its own vectors, of opposite signs: their mean is 0, and divides the weights."""

    def rank(strategy: Any) -> float:
        layer = nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.diag(torch.tensor([3.0, 1.0, 0.5, 0.1])))
        model = SPECTRAL[kind](layer)
        for buffer in model.buffers():
            buffer.copy_(torch.tensor([1.0, 0.1, 0.1, 0.1]))
        with torch.no_grad():
            for _ in range(20):
                model(torch.ones(1, 4))
        average = AVERAGERS[averager](model, strategy)
        if strategy.rank:  # a rank may come here at any time, as by a replacement
            for buffer in model.buffers():
                buffer.neg_()
        average.step()
        model.eval()
        return float(torch.linalg.matrix_norm(model(torch.eye(4)).detach(), 2))

    assert run_threads(rank) == [pytest.approx(1.0, abs=1e-3)] * 2


def test_masks_of_pruned_layers_stay_masks() -> None:
    def rank(strategy: Any) -> list[float]:
        layer = nn.Linear(4, 1, bias=False)
        nn.init.ones_(layer.weight)
        prune.custom_from_mask(layer, "weight", torch.arange(4).ne(strategy.rank).float()[None])
        AverageAll(layer, strategy, every=1).step()
        return layer.weight_mask[0].tolist()

    assert run_threads(rank) == [[0.0, 1.0, 1.0, 1.0]] * 2


def test_statistics_masks_and_caches(caplog: pytest.LogCaptureFixture) -> None:
    def rank(strategy: Any) -> list[Any]:
        model = nn.BatchNorm1d(1)
        model.running_mean.fill_(float(strategy.rank))
        model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        model.register_buffer("cache", torch.full((1 + strategy.rank,), float(strategy.rank)))
        model.register_buffer("scratch", torch.full((1,), float(strategy.rank)), persistent=False)
        model.register_buffer("turns", torch.polar(torch.ones(1), torch.full((1,), float(strategy.rank))))
        average = AverageAll(model, strategy, every=1)
        average.step()
        average.step()
        return [model.running_mean.tolist(), *(b.tolist() for b in (model.mask, model.cache, model.scratch))]

    with caplog.at_level(logging.WARNING):
        told = run_threads(rank)
    assert told == [[[0.5], [0.0, -torch.inf], [0.0], [0.0]], [[0.5], [0.0, -torch.inf], [1.0, 1.0], [1.0]]]
    assert [record.getMessage() for record in caplog.records] == [
        'not averaged: buffer "cache": float32 [1] on rank 0; float32 [2] on rank 1'
    ] * 2
    caplog.clear()


def test_complex_weights_have_a_mean() -> None:
    def rank(strategy: Any) -> list[complex]:
        model = nn.Linear(1, 1, bias=False, dtype=torch.complex64)
        with torch.no_grad():
            model.weight.fill_(complex(strategy.rank, 2.0))
        AverageAll(model, strategy, every=1).step()
        return model.weight.flatten().tolist()

    assert run_threads(rank) == [[0.5 + 2j]] * 2


@pytest.mark.parametrize("averager", AVERAGERS)
def test_a_parameter_of_one_rank_that_cannot_be_averaged_is_an_error_of_all(averager: str) -> None:
    def rank(strategy: Any) -> str:
        model = net()
        average = AVERAGERS[averager](model, strategy)
        if strategy.rank:
            model.body.to("meta")
        with pytest.raises(ConfigError) as raised:
            average.step()
        return str(raised.value)

    told = run_threads(rank)
    assert told[0] == told[1]
    assert told[0].startswith('parameter "body.bias" is on the meta device')
    assert told[0].endswith("on rank 1")


@pytest.mark.parametrize("averager", AVERAGERS)
def test_shards_are_averaged(averager: str) -> None:
    models: list[Any] = [nn.Module(), nn.Module()]
    for model in models:
        model.w = nn.Parameter(shard_of_two(torch.zeros(4, 3), 1))

    def rank(strategy: Any) -> list[float]:
        model = models[strategy.rank]
        average = AVERAGERS[averager](model, strategy)
        with torch.no_grad():
            model.w.fill_(float(strategy.rank))
        loss = (model.w * model.w).sum()
        average.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.to_local().backward()
        return model.w.to_local().unique().tolist()

    assert run_threads(rank) == [[0.5]] * 2
