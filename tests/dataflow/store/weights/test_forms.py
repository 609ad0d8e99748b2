"""What is known of tensors again: plans are made once, and never used for tensors of other forms or other memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from test_held import FakeDTensor, FakeMesh, Strided
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

import softs_fast.dataflow as df
from softs_fast.dataflow.process.objects import Objects
from softs_fast.dataflow.store import DataManager
from softs_fast.dataflow.store.weights import exchange
from softs_fast.dataflow.store.weights.exchange import show, take
from softs_fast.dataflow.store.weights.held import held_tensors
from softs_fast.errors import FlowError


class Model(df.Role):
    """Layers of different sizes, and a buffer."""

    def setup(self, mesh: df.Mesh) -> None:
        self.net = nn.Module()
        for i, size in enumerate((5, 9, 4)):
            setattr(self.net, f"layer{i}", nn.Linear(size, 3))
        self.net.register_buffer("count", torch.zeros(2))

    def run(self, rows: df.Rows) -> None: ...


SOURCE = df.place(Model, on=[0], name="source")
TARGET = df.place(Model, on=[1], name="target")


@pytest.fixture
def stores() -> Iterator[list[DataManager]]:
    with ExitStack() as stack:
        yield [stack.enter_context(DataManager(i, max_bytes=1 << 20)) for i in range(2)]


def objects_of(role: df.Placement) -> Objects:
    found = Objects([role], role.on[0])
    found.setup()
    return found


def publish(stores: list[DataManager], source: Objects, target: Objects, eta: float | None = None) -> None:
    shown = show(stores[0], 7, 0, source.held(SOURCE))
    mine = target.held(TARGET, buffers=eta is None)
    take(stores[1].mapped, SOURCE, TARGET, worker=1, theirs=None, mine=mine, eta=eta, await_shown=lambda known: [shown])  # fmt: skip
    stores[0].free([7])


def change(chance: random.Random, net: nn.Module) -> None:
    """Do something that training, offloading or a user may do to the tensors of a model."""
    name, one = chance.choice(list(net.named_parameters()))
    layer, key = net.get_submodule(name.split(".")[0]), name.split(".")[1]
    match chance.randrange(9):
        case 0:
            one.data = one.data.clone()  # as offload
        case 1:
            setattr(layer, key, nn.Parameter(torch.randn_like(one)))
        case 2 if one.ndim == 2:
            one.data = one.data.T.contiguous().T  # not contiguous
        case 3:
            one.data = one.data.contiguous()
        case 4:
            other = torch.float64 if one.dtype is torch.float32 else torch.float32
            setattr(layer, key, nn.Parameter(torch.randn(one.shape, dtype=other)))
        case 5:
            net.count = torch.randn(2)
        case 6:
            new = {key: torch.randn_like(value) for key, value in net.state_dict().items()}
            net.load_state_dict(new, assign=True)
        case 7:
            layer.to(chance.choice([torch.bfloat16, torch.float32]))
        case _:
            with torch.no_grad():
                one.add_(torch.randn_like(one))


@pytest.mark.parametrize("seed", range(4))
def test_models_that_change_between_hooks_have_the_newest_weights(
    stores: list[DataManager], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_plans = 0

    def counted(*given: Any, **options: Any) -> Any:
        nonlocal n_plans
        n_plans += 1
        return plan_reads(*given, **options)

    plan_reads = exchange.plan_reads
    monkeypatch.setattr(exchange, "plan_reads", counted)
    chance = random.Random(seed)
    torch.manual_seed(seed)
    source, target = objects_of(SOURCE), objects_of(TARGET)
    theirs, mine = source[SOURCE].net, target[TARGET].net
    for _ in range(60):
        for net in (theirs, mine):
            if chance.random() < 0.4:
                change(chance, net)
        before = {name: one.detach().clone() for name, one in mine.named_parameters()}
        eta = chance.choice([None, None, 0.25])
        publish(stores, source, target, eta)
        for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
            expected = other.to(one.dtype)
            if eta is not None:
                expected = before[name].lerp(expected, eta)
            assert torch.equal(one, expected), name
        if eta is None:
            assert torch.equal(mine.count, theirs.count)
    assert 3 < n_plans < 60


def test_a_plan_is_made_once(stores: list[DataManager], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = objects_of(SOURCE), objects_of(TARGET)
    publish(stores, source, target)
    for name in ("plan_reads", "first_lacking", "ShownLayout"):
        monkeypatch.delattr(exchange, name)
    for _ in range(3):
        with torch.no_grad():
            for one in source[SOURCE].net.parameters():
                one.mul_(2)
        publish(stores, source, target)
        for one, other in zip(target[TARGET].net.parameters(), source[SOURCE].net.parameters(), strict=True):
            assert torch.equal(one, other)


def test_tensors_that_a_target_does_not_have_are_said_once(
    stores: list[DataManager], caplog: pytest.LogCaptureFixture
) -> None:
    source, target = objects_of(SOURCE), objects_of(TARGET)
    source[SOURCE].net.layer0.adapter = nn.Linear(1, 1)
    for _ in range(3):
        publish(stores, source, target)
        publish(stores, source, target, 0.5)
    said = "weights of role 'source': role 'target' has no net.layer0.adapter.bias, net.layer0.adapter.weight: they are not"
    assert [one.message for one in caplog.records] == [f"{said} copied to it"]


def test_autograd_sees_that_a_tensor_was_copied_into(stores: list[DataManager]) -> None:
    source, target = objects_of(SOURCE), objects_of(TARGET)
    for _ in range(2):
        layer = target[TARGET].net.layer0
        loss = (layer(torch.ones(2, 5)) * layer.weight.sum()).sum() + (layer.weight**2).sum()
        publish(stores, source, target)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_tensor_without_memory_is_named(stores: list[DataManager]) -> None:
    source, target = objects_of(SOURCE), objects_of(TARGET)
    source[SOURCE].net.layer1.weight.untyped_storage().resize_(0)
    with pytest.raises(FlowError, match=r'tensor "net\.layer1\.weight" is without memory'):
        publish(stores, source, target)
    source, target = objects_of(SOURCE), objects_of(TARGET)
    publish(stores, source, target)
    source[SOURCE].net.layer1.weight.untyped_storage().resize_(0)
    with pytest.raises(FlowError, match=r"tensor net\.layer1\.weight has no memory"):
        publish(stores, source, target)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.empty(2, 2, device="meta"), "on the meta device, without memory"),
        (torch.eye(2).to_sparse(), "of layout sparse_coo"),
        (torch.ones(1, 2).expand(2, 2), "elements share memory"),
    ],
)
def test_what_cannot_move_is_refused_by_name_when_roles_are_made(tensor: Tensor, text: str) -> None:
    class Odd(df.Role):
        def setup(self, mesh: df.Mesh) -> None:
            self.net = nn.Module()
            self.net.register_buffer("odd", tensor)

    actor = df.place(Odd, on=[0], name="actor")
    gen = df.place(Odd, on=[1], follows=actor, name="gen")
    for role, worker in ((actor, 0), (gen, 1)):
        if "share memory" in text and role is actor:
            continue  # it can be shown
        with pytest.raises(FlowError, match=rf"role '{role.name}': tensor \"net.odd\" is .*{text}"):
            Objects([actor, gen], worker).setup()
    Objects([df.place(Odd, on=[0], name="alone")], 0).setup()


def test_forms_do_not_keep_tensors() -> None:
    source = objects_of(SOURCE)
    net = source[SOURCE].net
    pointer = source.held(SOURCE).addresses.tolist()
    old = net.layer0.weight.data_ptr()
    net.layer0.weight.data = net.layer0.weight.data.clone()
    held = source.held(SOURCE)
    assert held.addresses.tolist() == [net.layer0.weight.data_ptr() if one == old else one for one in pointer]
    assert not [one for one in vars(held.forms).values() if isinstance(one, Tensor)]


def test_other_tensors_are_not_taken_for_those_that_are_known() -> None:
    tensors = {"a": torch.zeros(2, 3), "b": nn.Parameter(torch.zeros(4))}
    forms = held_tensors(SOURCE, 0, tensors).forms
    assert forms.found_in(dict(tensors)) is not None
    assert forms.found_in({name: one.clone() for name, one in tensors.items()}) is None  # no parameter
    for other in (
        {"b": tensors["b"], "a": tensors["a"]},
        {"a": tensors["a"]},
        tensors | {"c": torch.zeros(1)},
        tensors | {"a": torch.zeros(3, 2)},
        tensors | {"a": torch.zeros(3, 2).T},
        tensors | {"a": torch.zeros(2, 3, dtype=torch.int32)},
        tensors | {"a": torch.empty(2, 3, device="meta")},
    ):
        assert forms.found_in(other) is None


def test_a_dtensor_in_another_layout_is_another_one() -> None:
    mesh, full = FakeMesh([0, 1], 0, ("dp",)), torch.zeros(8, 4)
    tensors: dict[str, Any] = {"w": FakeDTensor(full, mesh, (Shard(0),), full[:4])}
    forms = held_tensors(df.place(Model, "dp2", on=[0, 1]), 0, tensors).forms
    assert forms.found_in(tensors) is not None
    for placements, local, other in (
        ((Replicate(),), full, mesh),
        ((Shard(1),), full[:, :2].contiguous(), mesh),
        ((Shard(0),), full[:4], FakeMesh([0, 1], 0, ("dp",))),
        ((Shard(0),), full[:3], mesh),
        ((Strided(0, 2),), full[:4], mesh),
    ):
        assert forms.found_in({"w": FakeDTensor(full, other, placements, local)}) is None  # type: ignore[dict-item]
