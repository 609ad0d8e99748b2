"""softs.catcher: what is recorded, and when a forward is cut short."""

import gc
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from softs_fast.catcher import ModelIOCatcher


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


def test_what_a_later_module_writes_in_place(catcher_module: ModuleType, expect: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True)).requires_grad_(False)
    catcher = catcher_module.ModelIOCatcher(model, None)
    with catcher(inputs=["1"], outputs=["0"]) as captured:
        model(torch.tensor([-1.0, 2.0]))
    first = expect(softs=0.0, softs_fast=-1.0)
    assert captured["0"]["outputs"][0].tolist() == [first, 2.0]
    assert captured["1"]["inputs"][0]["args"][0].tolist() == [first, 2.0]


class Answer(OrderedDict[str, Any]):
    """What a model of transformers returns: its items are attributes too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Answers(nn.Module):
    """Returns its argument in containers of many kinds, each with the same tensor."""

    pair = namedtuple("pair", "left right")

    def forward(self, x: torch.Tensor) -> Any:
        answer = Answer()
        answer["x"] = x
        return {"list": [x, 1], "tuple": (x, None), "pair": self.pair(x, "s"), "answer": answer}


def test_copies_are_of_the_same_types_and_have_gradients() -> None:
    x = torch.ones(2, requires_grad=True)
    with ModelIOCatcher(model := Answers(), None)(outputs=[""]) as captured:
        model(x * 2)
    (output,) = captured[""]["outputs"]
    assert type(output["list"]) is list
    assert type(output["tuple"]) is tuple
    assert type(output["pair"]) is Answers.pair
    assert output["answer"].x is output["answer"]["x"]
    assert (output["list"][1], output["tuple"][1], output["pair"].right) == (1, None, "s")
    tensors = [output["list"][0], output["tuple"][0], output["pair"].left, output["answer"].x]
    assert len({tensor.data_ptr() for tensor in tensors}) == 4
    sum(tensors).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 8.0]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_without_copies_a_tensor_is_the_models_own(device: str | None) -> None:
    x = torch.ones(2)
    with ModelIOCatcher(model := Answers(), device, copies=False)(inputs=[""]) as captured:
        model(x)
    assert captured[""]["inputs"][0]["args"][0] is x


def test_a_tensor_that_is_moved_is_not_copied_again() -> None:
    x = torch.ones(2)
    with ModelIOCatcher(model := Answers(), "meta")(outputs=[""]) as captured:
        model(x)
    assert captured[""]["outputs"][0]["list"][0].is_meta
