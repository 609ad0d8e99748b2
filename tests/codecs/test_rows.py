"""Rows that native code copies into samples."""

import numpy as np
import pytest
import torch

import softs_fast as sf
from softs_fast import ConfigError
from softs_fast._core import copy_rows


@pytest.mark.parametrize("row_bytes", [0, 1, 70_000])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_each_row_goes_to_its_sample(n: int, row_bytes: int) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (n, row_bytes), np.uint8)
    samples = [bytearray(row_bytes + 8) for _ in range(n)]
    # A part of the sample, at any address.
    copy_rows(rows, [memoryview(sample)[3:] for sample in samples], 2)
    for row, sample in zip(rows, samples, strict=True):
        assert sample == bytes(5) + row.tobytes() + bytes(3)


def test_what_does_not_fit_is_refused() -> None:
    rows, samples = np.zeros(64, np.uint8), [memoryview(bytearray(40)) for _ in range(2)]
    with pytest.raises(ConfigError, match="64 bytes are no rows for 2 samples from byte 9 on"):
        copy_rows(rows, samples, 9)
    with pytest.raises(ConfigError, match="64 bytes are no rows for 3 samples"):
        copy_rows(rows, [*samples, samples[0]], 0)
    with pytest.raises(ConfigError, match="read-only"):
        copy_rows(rows, [memoryview(bytes(64))], 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "bool"])
@pytest.mark.parametrize("source", ["contiguous", "every other", "transposed"])
def test_large_tensors_of_any_strides(dtype: str, source: str) -> None:
    shape = (160, 130)
    config = sf.BatchConfig([sf.TensorSpec("y", (), "int64"), sf.TensorSpec("x", shape, dtype)])
    values = torch.arange(3 * 2 * 160 * 130).reshape(3, 320, 130) % 251
    batch = {
        "contiguous": values[:, :160].contiguous(),
        "every other": values[:, ::2],
        "transposed": values[:, :160].transpose(1, 2).contiguous().transpose(1, 2),
    }[source].to(getattr(torch, dtype))
    samples = [bytearray(config.nbytes()) for _ in range(3)]
    config.encode_batch_into({"x": batch, "y": torch.arange(3)}, samples)
    for i, sample in enumerate(samples):
        assert torch.equal(config.decode(sample)["x"], batch[i])
        assert sample == config.encode(x=batch[i], y=torch.tensor(i))
        again = bytearray(config.nbytes())
        config.encode_into({"x": batch[i], "y": i}, again)
        assert again == sample
