"""States of trainings as JSON and tensors: they are the same to the bit, and what is malformed is refused."""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softs_fast.coordination.node.state_tree import decode_tree, encode_tree
from softs_fast.errors import ConfigError, PeerLost, WireError

Place = namedtuple("Place", ["x", "y"])

KEYS = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.text(), st.integers())
)
LEAVES = KEYS | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.binary().map(bytearray)
LEAVES |= st.floats(allow_nan=False).map(np.float64) | st.integers(0, 200).map(np.uint8)
LEAVES |= (
    st.sets(KEYS, max_size=1)
    | st.frozensets(KEYS, max_size=1)
    | st.sampled_from([torch.bfloat16, torch.Size([2, 3])])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner, max_size=3).map(lambda found: deque(found, maxlen=4))
        | st.tuples(inner, inner).map(lambda two: Place(*two))
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
        | st.dictionaries(KEYS, inner).map(lambda found: defaultdict(list, found))
        | st.dictionaries(KEYS, st.integers()).map(Counter)
    ),
    max_leaves=20,
)


def sent(tree: Any) -> Any:
    """Encode a tree, and decode it with the bytes of its tensors."""
    text, tensors = encode_tree(tree)
    rest = iter(tensors.values())
    return decode_tree(text, lambda tensor: tensor.copy_(next(rest)))


@given(TREES)
def test_trees_come_back(tree: Any) -> None:
    found = sent(tree)
    assert found == tree
    assert repr(found) == repr(tree), "the same types, too"


# Of the dtypes of torch those with elements of whole bytes that are not quantised.
DTYPES = [
    one
    for name, one in vars(torch).items()
    if isinstance(one, torch.dtype)
    and not re.match(r"q|bits|bcomplex|float4|u?int[1-7]$", str(one)[6:])
    and str(one) == f"torch.{name}"
]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_come_back(dtype: torch.dtype) -> None:
    tensor = (torch.arange(12) % 2).to(dtype).view(3, 4).t()
    found = sent({"a": [tensor, {0: torch.ones((), dtype=dtype)}], "b": torch.empty(0, 3, dtype=dtype)})
    assert found["a"][0].dtype is dtype
    as_bytes = [one.contiguous().view(torch.uint8) for one in (found["a"][0], tensor)]
    assert torch.equal(*as_bytes)
    assert found["a"][1][0].shape == ()
    assert found["b"].shape == (0, 3)


def test_floats_come_back_to_the_bit() -> None:
    values = [float("inf"), -0.0, 5e-324, 0.1]
    assert [value.hex() for value in sent(values)] == [value.hex() for value in values]
    assert str(sent(float("nan"))) == "nan"


class Color(IntEnum):
    """A number that is more than a number."""

    RED = 1


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ({"a": [1, object()]}, r'state "a\[1\]" is a object; possible are None'),
        ({"a": {Color.RED: 3}}, r'state "the key <Color.RED: 1> of a" is a Color'),
        ({"a": np.str_("text")}, r'state "a" is a str_ of <U4; only numbers of numpy'),
        ({"a": np.ma.masked_array([1])}, r'state "a" is a MaskedArray'),
        ({"a": defaultdict(lambda: 1)}, r'state "a" is a defaultdict'),
        ({"a": namedtuple("Hidden", "x")(1)}, r'state "a" is a Hidden'),
        ({"a": 10**5000}, "the state cannot be sent: Exceeds the limit"),
        (LOOP, r'state "\[0\]\[0\].*" is nested more than 100 times'),
        ({"z": torch.zeros(2, device="meta")}, r'state "z" is on the meta device'),
        ([torch.eye(2).to_sparse()], r'state "\[0\]" is of layout sparse_coo'),
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
        ["list", {}],
        ["dict", [[["v", 1]]]],
        ["dict", [[["list", []], ["v", 1]]]],
        ["dict", [1]],
        ["set", [["list", []]]],
        ["deque", [], -1],
        ["default", [], "exec"],
        ["named", "os", "system", []],
        ["named", "no such module", "x", []],
        ["named", __name__, "Place", [["v", 1]]],
        ["dtype", "float"],
        ["bytes", -1],
        ["array", 8, "|O", [1]],
        ["array", 8, "<f8", [2]],
        ["scalar", 8, 7, []],
        ["ordered", [], ["v", 1]],
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
    deep = b'["list",[' * 200 + b'["v",1]' + b"]]" * 200
    with pytest.raises(WireError, match="nested more than 100 times"):
        decode_tree(deep, lambda tensor: None)


def test_tensors_that_the_receiver_has_are_named_and_not_sent() -> None:
    weight, rate = torch.ones(2), torch.zeros(1)
    text, sent = encode_tree(
        {"model": {"weight": weight}, "rate": rate}, lambda place: place == "model.weight"
    )
    assert list(sent) == ["rate"]
    own = torch.full((2,), 3.0)
    tree = decode_tree(text, lambda one: None, {"model.weight": own})
    assert tree["model"]["weight"] is own
    # A worker that followed another one may lack a part of its state: it is lost, and copies the whole.
    with pytest.raises(PeerLost, match=r'lacks "model\.weight"'):
        decode_tree(text, lambda one: None)
