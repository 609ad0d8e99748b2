"""softs.catcher: what is recorded, and when a forward is cut short."""

import gc
import weakref
from collections import namedtuple
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def catcher_module(sub: Callable[[str], ModuleType]) -> ModuleType:
    return sub("catcher")


class Net(nn.Module):
    """Two layers and a head; counts how often the head ran."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
        self.head = nn.Linear(4, 1)
        self.head_runs = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        hidden = self.layers(x * scale)
        self.head_runs += 1
        return torch.as_tensor(self.head(hidden))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().requires_grad_(False)


@pytest.mark.parametrize(
    ("product_id", "names"),
    [
        ("inputs[a.0]|outputs[b|c]", (["a.0"], ["b", "c"])),
        ("inputs[]|outputs[ x | |y ]", ([], ["x", "y"])),
        ("outputs[a]", ([], ["a"])),
        ("outputs[a] inputs[b]", (["b"], ["a"])),
        ("outputs[a]outputs[b]", ([], ["b"])),
        ("xinputs[a", ([], [])),
        ("", ([], [])),
    ],
)
def test_parse_io_spec(
    catcher_module: ModuleType, product_id: str, names: tuple[list[str], list[str]]
) -> None:
    assert catcher_module.parse_io_spec(product_id) == names


def test_transfer_to_device(catcher_module: ModuleType) -> None:
    pair = namedtuple("pair", "left right")
    tensor = torch.ones(1)
    nested = {"a": [tensor, 1], "b": (None, pair(tensor, "s"))}
    assert catcher_module.transfer_to_device(nested, None) is nested
    moved = catcher_module.transfer_to_device(nested, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["a"][1] == 1
    assert type(moved["b"]) is tuple
    assert type(moved["b"][1]) is pair
    assert moved["b"][1].left.is_meta
    assert moved["b"][1].right == "s"
    assert not tensor.is_meta


def test_records_inputs_and_outputs(catcher_module: ModuleType, net: Net) -> None:
    catcher = catcher_module.ModelIOCatcher(net, None)
    x = torch.ones(1, 2)
    with catcher(inputs=["layers.0", ""], outputs=["layers.0", "head"]) as captured:
        first = net(x, scale=2.0)
        second = catcher.run(x)
    net(x)
    assert torch.equal(captured["layers.0"]["inputs"][0]["args"][0], x * 2)
    assert captured["layers.0"]["inputs"][0]["kwargs"] == {}
    assert captured[""]["inputs"][0]["kwargs"] == {"scale": 2.0}
    assert torch.equal(captured["layers.0"]["outputs"][1], net.layers[0](x))
    assert torch.equal(captured["head"]["outputs"][0], first)
    assert torch.equal(captured["head"]["outputs"][1], second)
    assert len(captured["head"]["outputs"]) == 2
    assert captured["layers.1"]["outputs"] == []


def test_early_exit(catcher_module: ModuleType, net: Net) -> None:
    catcher = catcher_module.ModelIOCatcher(net, None)
    x = torch.ones(1, 2)
    with catcher.for_product("inputs[layers.0]|outputs[layers]") as captured:
        assert catcher.run(x) is None
        assert catcher.run(x) is None
    assert net.head_runs == 0
    assert len(captured["layers"]["outputs"]) == len(captured["layers.0"]["inputs"]) == 2
    assert catcher.run(x).shape == (1, 1)
    with catcher.for_product("outputs[layers]", early_exit=False) as captured:
        assert catcher.run(x).shape == (1, 1)
    assert len(captured["layers"]["outputs"]) == 1


def test_early_exit_waits_for_modules_that_never_run(catcher_module: ModuleType, net: Net) -> None:
    net.unused = nn.Linear(1, 1)
    catcher = catcher_module.ModelIOCatcher(net, None)
    with catcher(outputs=["layers", "unused"], early_exit=True) as captured:
        assert catcher.run(torch.ones(1, 2)) is not None
    assert len(captured["layers"]["outputs"]) == 1
    assert captured["unused"]["outputs"] == []


def test_refusals(catcher_module: ModuleType, net: Net) -> None:
    catcher = catcher_module.ModelIOCatcher(net, None)
    with pytest.raises(KeyError, match=r"unknown module name.*layers\.7"):
        catcher(outputs=["layers.7"])
    with pytest.raises(ValueError, match="selects no modules"):
        catcher.for_product("teacher")
    with pytest.raises(RuntimeError, match="mat1"):
        catcher.run(torch.ones(1, 5))


def test_a_session_starts_with_an_empty_buffer(catcher_module: ModuleType, net: Net) -> None:
    catcher = catcher_module.ModelIOCatcher(net, torch.device("cpu"))
    for _ in range(2):
        with catcher(outputs=["head"]) as captured:
            net(torch.ones(1, 2))
        assert len(captured["head"]["outputs"]) == 1


def test_hooks_come_and_go(catcher_module: ModuleType, net: Net, expect: Callable[..., Any]) -> None:
    catcher = catcher_module.ModelIOCatcher(net, None)
    catcher.attach_hooks()
    with catcher(outputs=["head"]) as captured:
        net(torch.ones(1, 2))
    assert len(captured["head"]["outputs"]) == expect(softs=2, softs_fast=1)
    catcher.detach_hooks()
    with catcher(outputs=["head"]) as captured:
        net(torch.ones(1, 2))
    assert captured["head"]["outputs"] == []
    # Each hook refers to its catcher.
    left = weakref.ref(catcher)
    del catcher
    gc.collect()
    assert left() is None
