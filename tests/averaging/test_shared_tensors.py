"""Which tensors a rank shares, whatever becomes of its model: frozen, added, grown, replaced, or of odd values."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_board import MemoryBoard, World
from team import NOW, RULES
from torch.nn.utils import parametrizations

from softs_fast.averaging import Event, Rules, SelectiveAveraging, Takeover
from softs_fast.averaging.meeting import meet_at
from softs_fast.averaging.takeover import copies_of, keep_share
from softs_fast.errors import ConfigError


class Pair:
    """Two ranks in one process, of which rank 0 is the worst; in memory, or with windows at a place."""

    def __init__(
        self, make: Callable[[float], torch.nn.Module], place: Path | None = None, **named: Any
    ) -> None:
        self.world = World()
        self.models = [make(float(rank)) for rank in range(2)]
        self.ranks = [
            SelectiveAveraging(
                model,
                None,
                RULES,
                meet=MemoryBoard(self.world, rank) if place is None else meet_at(place, rank),
                schedule=NOW,
                **(named if rank == 0 else {}),
            )
            for rank, model in enumerate(self.models)
        ]

    def step(self) -> Event | None:
        """Let both make a step, rank 1 first; what rank 0 fetches is complete afterwards."""
        self.ranks[1].step(0.9)
        event = self.ranks[0].step(0.1)
        while self.ranks[0]._pending is not None and self.ranks[0]._board.fetched() is None:
            pass
        return event

    def replaced(self) -> Event:
        """Make steps until rank 0 is replaced."""
        for _ in range(2):
            event = self.step()
        assert event is not None
        return event

    def shared(self, rank: int = 0) -> set[str]:
        return set(self.world.snapshots[rank][-1].tensors)

    def close(self) -> None:
        for rank in self.ranks:
            rank.shutdown()


def layer(value: float) -> torch.nn.Module:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, value)
    return model


@pytest.mark.parametrize("is_at_place", [True, False])
def test_a_replacement_between_forward_and_backward_makes_autograd_raise(
    tmp_path: Path, is_at_place: bool
) -> None:
    pair = Pair(layer, tmp_path / "place" if is_at_place else None)
    assert pair.step() is None
    loss = pair.models[0].weight.square().sum()
    before = pair.models[0].weight._version
    assert pair.step() is not None
    assert pair.models[0].weight.tolist() == pair.models[1].weight.tolist()
    assert pair.models[0].weight._version > before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    pair.close()


@pytest.mark.parametrize("where", ["accept", "build"])
def test_a_function_of_the_user_that_raises_leaves_all_as_it_was(where: str) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("of the user")

    takeover = (
        Takeover(optimizer_state="fresh", in_place=False) if where == "build" else Takeover(momentum=0.5)
    )
    pair = Pair(layer, takeover=takeover, **{where: fail})
    before = {name: tensor.clone() for name, tensor in pair.models[0].state_dict().items()}
    pair.step()
    with pytest.raises(ValueError, match="of the user"):
        pair.step()
    assert pair.ranks[0].model is pair.models[0]
    for name, tensor in pair.models[0].state_dict().items():
        assert torch.equal(tensor, before[name])
    assert pair.ranks[0].counters["replaced"] == 0
    assert pair.ranks[0].step(None) is None, "nothing is left of it"


def with_buffer(value: float, *, persistent: bool = True) -> torch.nn.Module:
    model = layer(value)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]), persistent=persistent)
    model.register_buffer("seen", torch.tensor([value, math.nan]), persistent=persistent)
    return model


@pytest.mark.parametrize("is_at_place", [True, False])
def test_buffers_may_have_any_values_and_parameters_may_not(tmp_path: Path, is_at_place: bool) -> None:
    pair = Pair(with_buffer, tmp_path / "place" if is_at_place else None)
    assert pair.replaced().donations[0].metric == 0.9
    assert pair.models[0].mask.tolist() == [0.0, -math.inf]
    assert pair.models[0].seen[0] == 1.0
    with torch.no_grad():
        pair.models[1].weight[0, 0] = math.inf
    for _ in range(4):
        pair.ranks[1].step(0.9)
        pair.ranks[0].step(0.1)
    assert pair.ranks[0].counters["replaced"] == 1
    assert pair.ranks[1].metrics[0] != pair.ranks[1].metrics[0], "it counts as the worst"
    pair.close()


def test_buffers_that_a_checkpoint_does_not_have_are_not_shared() -> None:
    pair = Pair(lambda value: with_buffer(value, persistent=False))
    pair.replaced()
    assert pair.shared() == {"model/weight", "model/bias"}
    assert pair.models[0].seen[0] == 0.0


def adapted(value: float) -> torch.nn.Module:
    model = torch.nn.Sequential(layer(value), layer(value)).requires_grad_(False)
    model[1].weight.requires_grad_(True)
    return model


def test_frozen_parameters_are_not_shared_and_one_that_is_unfrozen_later_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair(adapted)
    pair.replaced()
    assert pair.shared() == {"model/1.weight"}
    assert pair.models[0][0].weight.unique().tolist() == [0.0]
    assert pair.models[0][1].weight.detach().unique().tolist() == [1.0]
    with caplog.at_level(logging.WARNING):
        pair.models[0][0].weight.requires_grad_(True)
        pair.models[0][1].weight.requires_grad_(False)
        for _ in range(3):
            pair.step()
    assert caplog.text.count('tensor "0.weight" was added or unfrozen after the first step') == 1
    assert pair.shared() == {"model/1.weight"}, "also while it is frozen"
    assert pair.ranks[0].counters["replaced"] == 2


def test_parameters_that_share_memory_keep_their_share_once() -> None:
    matrix = torch.zeros(2, 2)
    tied = {"a": matrix, "b": matrix.t()}
    old = copies_of(tied)
    matrix.fill_(1.0)
    keep_share(tied, old, 0.5)
    assert matrix.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_built_model_keeps_the_frozen_parameters_of_this_rank() -> None:
    pair = Pair(
        adapted,
        build=lambda: (adapted(7.0), None),
        takeover=Takeover(optimizer_state="fresh", in_place=False),
    )
    pair.replaced()
    new = pair.ranks[0].model
    assert new is not pair.models[0]
    assert new[0].weight.unique().tolist() == [0.0]
    assert new[1].weight.detach().unique().tolist() == [1.0]


def test_a_builder_that_adds_a_layer_and_a_buffer_that_grows_raise_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build() -> tuple[torch.nn.Module, None]:
        model = with_buffer(7.0)
        model.extra = torch.nn.Linear(1, 1)
        return model, None

    pair = Pair(with_buffer, build=build, takeover=Takeover(optimizer_state="fresh", in_place=False))
    pair.replaced()
    model = pair.ranks[0].model
    assert hasattr(model, "extra")
    with caplog.at_level(logging.WARNING):
        model.seen = torch.zeros(5)
        for _ in range(4):
            pair.step()
    assert pair.ranks[0].counters["replaced"] >= 2
    assert caplog.text.count('tensor "seen" is float32 [5] now') >= 1
    assert pair.shared() == pair.shared(1)


@pytest.mark.parametrize("how", ["assign", "data"])
def test_tensors_that_are_replaced_are_taken_over_where_they_are_now(how: str) -> None:
    pair = Pair(with_buffer)
    pair.step()
    model = pair.models[0]
    if how == "assign":
        model.load_state_dict({name: one + 5 for name, one in model.state_dict().items()}, assign=True)
    else:
        model.weight.data = model.weight.detach() + 5
        model.seen = model.seen + 5
    assert pair.step() is not None, "it was fetched before"
    assert torch.equal(model.weight, pair.models[1].weight)
    assert model.seen[0] == 1.0


def test_a_parameter_of_another_dtype_is_refused_by_name() -> None:
    pair = Pair(layer)
    pair.step()
    pair.models[0].bfloat16()
    with pytest.raises(
        ConfigError, match=r'parameter "weight" is bfloat16 \[2, 2\]; expected float32 \[2, 2\]'
    ):
        pair.step()


def test_complex_parameters_are_shared_and_what_cannot_be_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def make(value: float) -> torch.nn.Module:
        model = layer(value)
        model.z = torch.nn.Parameter(torch.full((3,), complex(value, -value)))
        model.register_buffer("packed", torch.zeros(2).to(torch.float8_e4m3fn))
        return model

    pair = Pair(make)
    loss = pair.models[0].z.abs().square().sum()
    pair.replaced()
    assert pair.models[0].z.tolist() == [1 - 1j] * 3
    assert 'tensor "packed" is not shared' in caplog.text
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class WithMasters(torch.optim.Optimizer):
    """Keeps float32 copies of weights, and copies them back in each step, as optimizers for 16 bits do."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {})
        for weight in self.param_groups[0]["params"]:
            self.state[weight] = {
                "master": weight.detach().float() + 1e-4,
                "moment": torch.zeros(weight.shape),
            }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight, state in self.state.items():
            weight.copy_(state["master"])


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_optimizer_with_copies_in_float32_goes_on_with_the_new_weights(is_kept: bool) -> None:
    pair = Pair(lambda value: layer(value + 1).bfloat16(), accept=lambda _: is_kept)
    optimizer = WithMasters(pair.models[0].parameters())
    pair.ranks[0].use(pair.models[0], optimizer)
    assert pair.replaced().is_kept == is_kept
    optimizer.step()
    assert pair.models[0].weight.unique().tolist() == [2.0 if is_kept else 1.0]
    state = optimizer.state[pair.models[0].weight]
    assert state["master"].unique().tolist() == [2.0 if is_kept else pytest.approx(1.0001)]
    assert not state["moment"].any()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda model: model.requires_grad_(False), "no parameter of the model is trained"),
        (lambda model: model.to("meta"), 'parameter "weight" is on the meta device'),
        (
            lambda model: model.register_module("late", torch.nn.LazyLinear(2)),
            'parameter "late.weight" is not init',
        ),
    ],
)
def test_a_model_that_cannot_be_shared_is_refused_in_the_first_step(
    tmp_path: Path, change: Callable[[torch.nn.Module], object], text: str
) -> None:
    model = layer(0.0)
    change(model)
    with (
        SelectiveAveraging(model, None, RULES, meet=tmp_path, rank=0) as engine,
        pytest.raises(ConfigError, match=text),
    ):
        engine.step(0.5)


def test_vectors_of_spectral_norm_are_those_of_one_donor() -> None:
    world = World()
    models = [parametrizations.spectral_norm(torch.nn.Linear(4, 4)) for _ in range(3)]
    ranks = [
        SelectiveAveraging(
            model, None, Rules(every=1, replace_worst=0.01), meet=MemoryBoard(world, rank), schedule=NOW
        )
        for rank, model in enumerate(models)
    ]
    event = None
    while event is None:
        for rank in (2, 1, 0):
            event = ranks[rank].step(0.1 + rank)
    assert len(event.donations) == 2
    for name, vector in models[0].named_buffers():
        assert vector.norm().item() == pytest.approx(1.0), name
