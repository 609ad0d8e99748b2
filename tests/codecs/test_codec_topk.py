"""The largest logits of rows: those of torch, from whatever memory, and no index beyond its row."""

import math
import struct

import numpy as np
import pytest
import torch

from softs_fast import BatchConfig, ConfigError, TensorSpec, WireError
from softs_fast.codecs import TopK, TopKLogits, topk_logits


def logits(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 4).to(getattr(torch, dtype))


@pytest.mark.parametrize(
    ("shape", "k"),
    [
        ((7,), 1),
        ((7,), 7),
        ((3, 1000), 64),
        ((2, 0, 5), 2),
        ((2, 3, 40), 40),
        ((2, 65536), 5),
        ((2, 70000), 300),
    ],
)
def test_they_are_those_of_torch(shape: tuple[int, ...], k: int) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        check(dtype, shape, k)


def check(dtype: str, shape: tuple[int, ...], k: int) -> None:
    values = logits(shape, dtype)
    spec = TensorSpec("l", shape, dtype, codec=TopK(k))
    data = spec.encode(values)
    n_rows = math.prod(shape[:-1])
    assert (
        len(data)
        == spec.nbytes
        == n_rows * (k * (values.element_size() + (2 if shape[-1] <= 65536 else 4)) + 4)
    )
    decoded = spec.decode(data)
    assert isinstance(decoded, TopKLogits)
    wanted = topk_logits(values, k)
    assert [part.dtype for part in decoded] == [values.dtype, torch.int64, torch.float32]
    assert [part.shape for part in decoded] == [part.shape for part in wanted]
    assert torch.equal(decoded.values, wanted.values)
    # Of equal logits torch takes any; here it is the first.
    assert torch.equal(values.gather(-1, decoded.indices), decoded.values)
    stable = torch.sort(values, stable=True, dim=-1, descending=True).indices[..., :k]
    assert torch.equal(decoded.indices, stable)
    exact = torch.logsumexp(values.double(), -1)
    assert ((decoded.lse - exact).abs() <= exact.abs() * 6e-8 + 3e-7).all()


def test_rows_with_infinities_and_nan() -> None:
    inf, nan = math.inf, math.nan
    rows = torch.tensor(
        [[0, -inf, 1, -inf], [-inf] * 4, [inf, 0, 1, 2], [nan, inf, 3, 1], [5, 5, 5, 5], [1e-45, 0, -1, -2]]
    )
    spec = TensorSpec("l", (6, 4), "float32", codec="topk:3")
    decoded = spec.decode(spec.encode(rows))
    wanted = topk_logits(rows, 3)
    assert torch.equal(decoded.values.nan_to_num(9e9), wanted.values.nan_to_num(9e9))
    torch.testing.assert_close(decoded.lse, wanted.lse, equal_nan=True)
    assert decoded.indices[4].tolist() == [0, 1, 2]


def test_arrays_and_strides() -> None:
    values = logits((50, 6))
    spec = TensorSpec("l", (6, 50), "float32", codec="topk:4")
    wanted = topk_logits(values.t(), 4)
    config = BatchConfig([TensorSpec("odd", (3,), "uint8"), spec])
    for given in (values.t(), values.t().contiguous(), values.numpy().T):
        slot = bytearray(config.nbytes())
        config.encode_into({"odd": np.zeros(3, np.uint8), "l": given}, slot)
        assert torch.equal(config.decode(slot)["l"].indices, wanted.indices)


def test_what_a_teacher_has_already() -> None:
    values = logits((2, 5, 300), "bfloat16")
    spec = TensorSpec("l", (2, 5, 300), "bfloat16", codec="topk:8")
    ready = topk_logits(values.requires_grad_(), 8)
    decoded = spec.decode(spec.encode(ready))  # type: ignore[arg-type]
    for have, need in zip(decoded, ready, strict=True):
        assert torch.equal(have, need)
    for bad, message in [
        (
            ready._replace(indices=ready.indices + 300),
            r'tensor "l.indices": index \d+ at element 0 is not within a row of 300',
        ),
        (ready._replace(indices=ready.indices.int()), r'Dtype mismatch.*"l.indices"'),
        (ready._replace(lse=ready.lse[0]), r'Shape mismatch.*"l.lse"'),
        (topk_logits(values, 7), r'Shape mismatch.*"l.values"'),
    ]:
        with pytest.raises(ConfigError, match=message):
            spec.encode(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "code", "index"),
    [(1000, "=H", 1000), (1000, "=H", 65535), (70000, "=i", 70000), (70000, "=i", -1)],
)
def test_indices_beyond_the_row_never_reach_a_tensor(row: int, code: str, index: int) -> None:
    config = BatchConfig([TensorSpec("y", (), "int64"), TensorSpec("l", (3, row), "float32", codec="topk:2")])
    data = bytearray(config.encode(y=torch.tensor(1), l=logits((3, row))))
    struct.pack_into(code, data, 8 + 3 * 2 * 4 + 4 * struct.calcsize(code), index)
    shown = index % 2**32
    for decode in (
        config.decode,
        lambda data: config.decode_batch([data]),
        lambda data: config.decode_single(data, "l"),
    ):
        with pytest.raises(
            WireError, match=rf'tensor "l": .*index {shown} at element 4 is not within a row of {row}'
        ):
            decode(data)


def test_arguments() -> None:
    for k in (0, -1, 2**31, 1.5, True, None):
        with pytest.raises(ConfigError, match="topk: k must be a whole number from 1 to 2147483647"):
            TopK(k)  # type: ignore[arg-type]
    for shape, dtype in [((5,), "float32"), ((10,), "float64"), ((10,), "int32")]:
        with pytest.raises(ConfigError, match=f'tensor "l": topk needs float32, .* have {dtype} and 6'):
            TensorSpec("l", shape, dtype, codec=TopK(6))
    for shape in ((), (2**31,)):
        with pytest.raises(ConfigError, match='tensor "l": topk needs a last axis of 6 to 2147483647 logits'):
            TensorSpec("l", shape, "float32", codec=TopK(6))
    for k, shape in [(0, (4,)), (5, (4,)), (1, ())]:
        with pytest.raises(ConfigError, match="need k logits of each row"):
            topk_logits(torch.zeros(shape), k)
