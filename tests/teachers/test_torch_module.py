"""What a teacher around a module sends is what the module computes."""

from __future__ import annotations

import functools
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import Counting, make_list, make_net, make_weights, texts_of_a_generator
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from softs_fast import ConfigError
from softs_fast.codecs import TopKLogits
from softs_fast.teachers import Output, TorchTeacher

DATA = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10)


def make(teacher: TorchTeacher, n: int = 10) -> dict[str, Any]:
    made: dict[str, Any] = teacher._load().for_product("p", n, tuple(range(n)))
    rows = [bytearray(teacher.batch_config.nbytes()) for _ in range(n)]
    teacher.batch_config.encode_batch_into(made, rows)
    return made


class TwoInputs(nn.Module):
    """A module that takes its tensors by name and returns a mapping."""

    def forward(self, *, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": left + right, "left": left}


class Mappings:
    def __init__(self, extra: bool) -> None:
        self.extra = extra

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"left": np.full(2, i, np.float32), "right": torch.ones(2)} | (
            {"name": i} if self.extra else {}
        )


def test_outputs_are_those_of_the_module() -> None:
    teacher = TorchTeacher(make_net, DATA, ["input", "output", "outputs[first]", "inputs[second.1]"])
    shapes = {spec.name: spec.shape for spec in teacher.batch_config.specs}
    assert shapes == {"input": (4,), "output": (3,), "outputs[first]": (8,), "inputs[second.1]": (8,)}
    made, net = make(teacher), make_net().eval()
    assert sorted(made["input"].tolist()) == sorted(DATA.tolist())
    with torch.inference_mode():
        first = net.first(made["input"])
        # What was recorded is not what a later module has made of it, in place.
        torch.testing.assert_close(made["outputs[first]"], first)
        torch.testing.assert_close(made["inputs[second.1]"], first.relu())
        torch.testing.assert_close(made["output"], net(made["input"]))


def test_elements_may_be_tuples_of_which_the_module_takes_the_first() -> None:
    outputs = {"x": Output("0"), "label": Output("1"), "y": Output("output", "topk:2")}
    made = make(TorchTeacher(make_net, TensorDataset(DATA, LABELS), outputs))
    assert sorted(made["label"].tolist()) == list(range(10))
    assert torch.equal(made["x"], DATA[made["label"]])
    assert isinstance(made["y"], TopKLogits)


def test_elements_may_be_mappings_that_the_module_takes_by_name() -> None:
    made = make(TorchTeacher(TwoInputs, Mappings(extra=False), ["left", "output"]), 3)
    torch.testing.assert_close(made["output"], made["left"] + 1)
    inputs = {"model_inputs": ["right", "left"]}
    made = make(TorchTeacher(TwoInputs, Mappings(extra=True), ["name", "output"], **inputs), 3)
    torch.testing.assert_close(made["output"], (made["name"] + 1.0)[:, None].expand(3, 2))


def test_floats_are_cast_for_the_module_only() -> None:
    made = make(TorchTeacher(make_net, DATA, ["input", "output"], dtype="float64"))
    assert (made["input"].dtype, made["output"].dtype) == (torch.float32, torch.float64)
    with torch.inference_mode():
        torch.testing.assert_close(made["output"], make_net().eval().double()(made["input"].double()))


def test_without_output_the_rest_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = TorchTeacher(make_net, DATA, "outputs[first]", max_rows=4)
    found: list[Counting] = []

    def counted() -> nn.Module:
        net = make_net()
        found.append(Counting(net))
        return net

    monkeypatch.setattr(teacher, "_make_model", counted)
    make(teacher)
    assert found[0].calls == {"": 3, "first": 3}
    assert found[0].rows == [4, 4, 2]


def test_shapes_may_be_given_for_a_module_that_needs_its_weights() -> None:
    with pytest.raises(
        ConfigError, match=r"shapes cannot be found: .*; give each output its shape and dtype"
    ):
        TorchTeacher(make_weights, DATA, "output")
    teacher = TorchTeacher(
        make_weights,
        DATA,
        {
            "y": Output("output", shape=[3], dtype="float32"),
            "input": Output("input", shape=(4,), dtype="float32"),
        },
    )
    torch.testing.assert_close(make(teacher)["y"], make_net().eval()(make(teacher)["input"]).detach())


def test_modules_and_data_are_small_to_send() -> None:
    teacher = TorchTeacher(functools.partial(nn.Linear, 4, 3), DATA, "output")
    assert len(pickle.dumps(teacher)) < 3000
    copied = pickle.loads(pickle.dumps(teacher))
    assert copied.batch_config == teacher.batch_config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"make_model": lambda: make_net()}, r"make_model cannot be sent .*; give a function of a module"),
        ({"make_model": make_list}, "make_model returned list; it must return a torch.nn.Module"),
        ({"data": texts_of_a_generator()}, "data of type generator has no elements by number"),
        ({"data": {"x": DATA}}, "data of type dict has no elements by number"),
        ({"data": []}, "data are empty"),
        ({"data": [threading.Lock()]}, "data cannot be sent to another"),
        ({"data": ["text"]}, "field 'input' of data is of type str; need a tensor"),
        ({"outputs": {"y": Output("output", shape=(3,))}}, "output 'output' has a shape and no dtype"),
        ({"outputs": "outputs"}, "unknown output 'outputs'; did you mean 'output'"),
        ({"outputs": "outputs[frst]"}, r"unknown module in outputs\[PATH\]: 'frst'; did you mean 'first'"),
        ({"outputs": []}, "outputs are empty"),
        ({"outputs": 5}, "outputs must be names, or a mapping"),
        ({"outputs": {"output": "topk:4"}}, "k from 1 to 3"),
        ({"outputs": {"output": "top:4"}}, r"output 'output': unknown codec 'top:4'; .*Output\(source\)"),
        ({"model_inputs": ["x"]}, "unknown name in model_inputs 'x'; have 'input'"),
        ({"max_rows": 0}, "max_rows must be a whole number from 1 on, got 0"),
        ({"seed": -1}, "seed must be a whole number from 0 on"),
        ({"dtype": "int8"}, "dtype must be one of floating-point numbers"),
        ({"dtype": "float99"}, "Unsupported dtype: float99"),
        ({"device": "tpu:0"}, "device 'tpu:0' is none that torch knows"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchTeacher(**{"make_model": make_net, "data": DATA, "outputs": "output"} | arguments)
