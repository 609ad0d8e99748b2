"""Names of generations, and configurations on their way."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softs_fast import ConfigError, WireError
from softs_fast.distill.model import PATTERN, decode_model_cfg, encode_model_cfg, parse_product, product_of


@given(st.integers(0, 2**64 - 1), st.integers(0, 65535))
def test_products_name_their_generation_and_rank(generation: int, rank: int) -> None:
    assert parse_product(product_of(generation, rank)) == (generation, rank)


@pytest.mark.parametrize(
    "product_id",
    ["", "gen", "gen/1", "gen/1/", "gen//1", "gen/01/1", "gen/1/01", "gen/-1/0", "gen/1/0/", "gen/1/0\n", "gen/\u0661/0",
     f"gen/{10**20}/0", "gen/1/100000", "xgen/1/0"],
)  # fmt: skip
def test_products_that_name_nothing(product_id: str) -> None:
    assert parse_product(product_id) is None


def test_workers_serve_all_generations_but_the_one_without_a_model() -> None:
    import re

    assert re.fullmatch(PATTERN, product_of(1, 0))
    assert re.fullmatch(PATTERN, product_of(2**64 - 1, 65535))
    assert not re.fullmatch(PATTERN, product_of(0, 0))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.none() | st.dictionaries(st.text(), VALUES, max_size=4))
def test_configurations_come_as_they_went(model_cfg: dict[str, Any] | None) -> None:
    assert decode_model_cfg(encode_model_cfg(model_cfg)) == model_cfg


def test_tuples_and_sets() -> None:
    assert decode_model_cfg(encode_model_cfg({"a": (1, 2)})) == {"a": [1, 2]}
    of_numpy = encode_model_cfg({"n": np.int64(3), "x": [np.float32(0.5)]})
    assert of_numpy == encode_model_cfg({"n": 3, "x": [0.5]}), "or the digest would be another model's"
    with pytest.raises(ConfigError, match=r"cannot be encoded: set has no msgpack form"):
        encode_model_cfg({"a": {1}})


def test_a_configuration_that_has_itself() -> None:
    model_cfg: dict[str, Any] = {}
    model_cfg["self"] = model_cfg
    with pytest.raises(ConfigError, match="cannot be encoded"):
        encode_model_cfg(model_cfg)


@given(st.binary(min_size=1))
def test_hostile_configurations(encoded: bytes) -> None:
    try:
        decoded = decode_model_cfg(encoded)
    except WireError:
        return
    assert decoded is None or isinstance(decoded, dict)


def test_a_deep_configuration() -> None:
    with pytest.raises(WireError):
        decode_model_cfg(b"\x81\xa1a" * 100_000)
