"""States of trainings as JSON and tensors: they are the same to the bit, and what is malformed is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.coordination.node.state_tree import decode_tree, encode_tree
from softs_fast.errors import ConfigError, WireError

LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


def sent(tree: Any) -> Any:
    """Encode a tree, and decode it with the bytes of its tensors."""
    text, tensors = encode_tree(tree)
    rest = iter(tensors)
    return decode_tree(text, lambda tensor: tensor.copy_(next(rest)))


@given(TREES)
def test_trees_come_back(tree: Any) -> None:
    found = sent(tree)
    assert found == tree
    assert repr(found) == repr(tree), "the same types, too"


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8],
)
def test_tensors_come_back(dtype: torch.dtype) -> None:
    tensor = (torch.arange(12) % 2).to(dtype).view(3, 4).t()
    found = sent({"a": [tensor, {0: torch.ones((), dtype=dtype)}], "b": torch.empty(0, 3, dtype=dtype)})
    assert found["a"][0].dtype is dtype
    assert torch.equal(found["a"][0], tensor)
    assert found["a"][1][0].shape == ()
    assert found["b"].shape == (0, 3)


def test_floats_come_back_to_the_bit() -> None:
    values = [float("inf"), -0.0, 5e-324, 0.1]
    assert [value.hex() for value in sent(values)] == [value.hex() for value in values]
    assert str(sent(float("nan"))) == "nan"


def test_the_state_of_an_optimizer_comes_back() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.8, 0.9))
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    other = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    other.load_state_dict(sent(optimizer.state_dict()))
    assert other.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    assert torch.equal(
        other.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": [1, object()]}, r'state at "\.a\[1\]" is a object'),
        ({"a": {(1, 2): 3}}, r'state at "\.a" has a key of type tuple'),
        ({"z": torch.zeros(2, dtype=torch.complex64)}, r'state at "\.z" is a tensor of complex64'),
        ([torch.eye(2).to_sparse()], r'state at "\[0\]" is a tensor of layout torch.sparse_coo'),
    ],
)
def test_what_cannot_be_sent_is_named(tree: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        encode_tree(tree)


@pytest.mark.parametrize(
    "node",
    [
        None,
        [],
        ["v"],
        ["v", [1]],
        ["f", 1.0],
        ["f", "x"],
        ["t", "float32"],
        ["t", "object", [1]],
        ["t", "float32", [-1]],
        ["t", "float32", [1 << 30, 1 << 30]],
        ["t", "float32", "x"],
        ["l", {}],
        ["d", [[["v", 1], ["v", 1]]]],
        ["d", [1]],
        ["x", 1],
    ],
)
def test_malformed_trees(node: Any) -> None:
    with pytest.raises(WireError, match="the state of the source is malformed"):
        decode_tree(json.dumps(node).encode(), lambda tensor: None)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode_tree(data, lambda tensor: None)
    except WireError:
        return


def test_deep_trees_are_refused() -> None:
    deep = b'["l",[' * 200 + b'["v",1]' + b"]]" * 200
    with pytest.raises(WireError, match="nested more than 100 times"):
        decode_tree(deep, lambda tensor: None)
