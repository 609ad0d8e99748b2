"""Values that become bits of a dtype: no other dtype is cast, and no number that it lacks is taken."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from softs_fast import BatchConfig, ConfigError, TensorSpec
from softs_fast.tensors.dtypes import ITEM_BYTES, STAND_INS

TORCH_DTYPES = list(STAND_INS)
NUMPY_DTYPES = [dtype for dtype in ITEM_BYTES if dtype not in STAND_INS]
XY = BatchConfig([TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (), "int64")])


class OfMlDtypes(np.ndarray[Any, Any]):
    """An array as JAX hands it out: numpy says the name of its dtype, and views it as other dtypes of its size."""

    name = ""

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(name=self.name)


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_dtypes_that_another_package_adds_to_numpy(dtype: str) -> None:
    tensor = torch.arange(3.0).to(getattr(torch, dtype))
    array = tensor.view(getattr(torch, STAND_INS[dtype])).numpy().view(OfMlDtypes)
    array.name = dtype
    config = BatchConfig([TensorSpec("x", (3,), dtype)])
    slot = bytearray(config.nbytes())
    config.encode_into({"x": array}, slot)
    assert config.decode(bytes(slot))["x"].float().tolist() == [0, 1, 2]
    array.name = "float8_e3m4"
    with pytest.raises(ConfigError, match="Dtype mismatch"):
        config.encode_into({"x": array}, slot)


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *TORCH_DTYPES])
def test_other_dtypes_are_not_cast(dtype: str) -> None:
    config = BatchConfig([TensorSpec("x", (2,), dtype)])
    slot = bytearray(b"\xee") * config.nbytes()
    for other in {*NUMPY_DTYPES, *TORCH_DTYPES} - {dtype}:
        tensor = torch.zeros(2).to(getattr(torch, other))
        with pytest.raises(ConfigError, match=rf'Dtype mismatch: torch.{other} != torch.{dtype}, .*"x"'):
            config.encode_into({"x": tensor}, slot)
        if other in NUMPY_DTYPES:
            with pytest.raises(
                ConfigError, match=rf'Dtype mismatch: {other} != {dtype}, expected by tensor "x"'
            ):
                config.encode_into({"x": tensor.numpy()}, slot)
    assert slot == b"\xee" * config.nbytes()


@pytest.mark.parametrize("dtype", [">f4", "uint16", "complex64", "object", "<U1"])
def test_dtypes_that_are_none_of_ours(dtype: str) -> None:
    for needed in ("float32", "bfloat16"):
        config = BatchConfig([TensorSpec("x", (2,), needed)])
        with pytest.raises(ConfigError, match=f"Dtype mismatch: .* != {needed}"):
            config.encode_into({"x": np.zeros(2, dtype)}, bytearray(config.nbytes()))


@pytest.mark.parametrize(
    ("dtype", "value", "kept"),
    [
        ("float64", 0.1, 0.1),
        ("float64", 2**53, 2**53),
        ("float32", 1.5, 1.5),
        ("float16", -65504.0, -65504),
        ("float16", float("inf"), float("inf")),
        ("bfloat16", -2.5, -2.5),
        ("bfloat16", float("-inf"), float("-inf")),
        ("float8_e4m3fn", 448, 448),
        ("float8_e5m2", -1.5, -1.5),
        ("int64", -(2**63), -(2**63)),
        ("uint8", 255, 255),
        ("int8", np.int8(-3), -3),
        ("float32", np.float32(2.5), 2.5),
        ("bool", True, True),
        ("bool", np.True_, True),
    ],
)
def test_numbers(dtype: str, value: Any, kept: float) -> None:
    config = BatchConfig([TensorSpec("pad", (1,), "bool"), TensorSpec("x", (), dtype)])
    slot = bytearray(config.nbytes())
    config.encode_into({"pad": np.ones(1, bool), "x": value}, slot)
    assert config.decode(slot)["x"].item() == kept


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("uint8", 256, 'tensor "x": int 256 is no value of uint8'),
        ("int64", 2**63, "is no value of int64"),
        ("int32", 1.0, r"float 1\.0 is no value of int32"),
        ("int32", True, "bool True is no value of int32"),
        ("bool", 1, "int 1 is no value of bool"),
        ("float32", False, "bool False is no value of float32"),
        ("float16", 65536.0, "is no value of float16"),
        ("float32", -1e39, "is no value of float32"),
        pytest.param("float64", 10**400, "is no value of float64", id="huge"),
        ("float8_e4m3fn", float("-inf"), "is no value of float8_e4m3fn"),
        ("bfloat16", 3.4e38, "is no value of bfloat16"),
        ("float8_e4m3fn", 449, "is no value of float8_e4m3fn"),
        ("float32", np.float64(1), "Dtype mismatch: float64 != float32"),
        ("int64", "1", 'tensor "x" is of type str; need a tensor, an array or a number'),
        ("int64", [1], 'tensor "x" is of type list'),
        ("int64", None, 'tensor "x" is of type NoneType'),
    ],
)
def test_what_is_no_such_number(dtype: str, value: Any, message: str) -> None:
    config = BatchConfig([TensorSpec("x", (), dtype)])
    slot = bytearray(config.nbytes())
    with pytest.raises(ConfigError, match=message):
        config.encode_into({"x": value}, slot)


@pytest.mark.parametrize(
    "value", [torch.ones(2).to_sparse(), torch.ones(2, device="meta")], ids=["sparse", "meta"]
)
def test_a_tensor_without_dense_memory_is_named(value: torch.Tensor) -> None:
    config = BatchConfig([TensorSpec("x", (2,), "float32")])
    with pytest.raises(ConfigError, match='tensor "x" has no values in dense memory'):
        config.encode_into({"x": value}, bytearray(config.nbytes()))


def test_a_number_is_not_spread_over_a_shape() -> None:
    with pytest.raises(ConfigError, match=r"Shape mismatch: \(\) != \(2, 3\), expected by tensor \"x\""):
        XY.encode_into({"x": 1.0, "y": 1}, bytearray(32))
    with pytest.raises(ConfigError, match=r"Shape mismatch: \(\) != \(1,\), expected by tensor \"y\""):
        XY.encode_batch_into({"x": torch.ones(1, 2, 3), "y": 1}, [bytearray(32)])
