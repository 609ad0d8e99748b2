"""Tensors at any offset of a sample, and of any strides when they are written."""

from collections.abc import Callable

import pytest
import torch

import softs_fast
from softs_fast import TensorSpec


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "float16", "int64"])
@pytest.mark.parametrize("lead", [0, 1, 3])
def test_misaligned_fields_decode_to_aligned_tensors(dtype: str, lead: int) -> None:
    config = softs_fast.BatchConfig([TensorSpec("lead", (lead,), "uint8"), TensorSpec("x", (3, 2), dtype)])
    value = torch.tensor([[0, 1], [1, 0], [1, 1]]).to(getattr(torch, dtype))
    data = config.encode(lead=torch.zeros(lead, dtype=torch.uint8), x=value)
    for decoded in (
        config.decode(data)["x"],
        config.decode_single(data, "x"),
        config.decode_batch([data])["x"][0],
    ):
        assert torch.equal(decoded, value)
        assert decoded.data_ptr() % decoded.element_size() == 0
        decoded.zero_()


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.t().contiguous().t(),
        lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],
        lambda tensor: tensor.clone().requires_grad_(),
        lambda tensor: tensor.expand(1, 3, 2)[0],
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_encode_of_unusual_tensors(change: Callable[[torch.Tensor], torch.Tensor], dtype: str) -> None:
    tensor = torch.arange(6.0).reshape(3, 2).to(getattr(torch, dtype))
    spec = TensorSpec("x", (3, 2), dtype)
    assert spec.encode(change(tensor)) == spec.encode(tensor)
    config = softs_fast.BatchConfig([spec])
    assert config.encode(x=change(tensor)) == config.encode(x=tensor) == spec.encode(tensor)
