"""Samples and batches written straight into slots."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from any_samples import (
    NUMPY_DTYPES,
    TORCH_DTYPES,
    XY,
    as_strided,
    bytes_of,
    configs,
    random_tensor,
    slots_of,
    xy,
)
from hypothesis import given
from hypothesis import strategies as st

from softs_fast import BatchConfig, ConfigError, TensorSpec


@given(configs(), st.integers(0, 1000), st.booleans(), st.integers(0, 3))
def test_a_sample_is_laid_out_as_encode_does(
    config: BatchConfig, seed: int, strided: bool, shift: int
) -> None:
    sample = {spec.name: random_tensor(spec, seed + i) for i, spec in enumerate(config.specs)}
    expected = b"".join(bytes_of(sample[spec.name]) for spec in config.specs)
    assert config.encode(**sample) == expected
    given_sample: dict[str, Any] = {}
    for i, (name, tensor) in enumerate(reversed(sample.items())):
        tensor = as_strided(tensor) if strided else tensor
        is_array = i % 2 and config.get_spec(name).dtype in NUMPY_DTYPES
        given_sample[name] = tensor.numpy() if is_array else tensor
    memory = bytearray(b"\xee") * (config.nbytes() + shift + 1)
    config.encode_into(given_sample, memoryview(memory)[shift:-1])
    assert memory == b"\xee" * shift + expected + b"\xee"
    decoded = config.decode(expected)
    for name, tensor in sample.items():
        assert decoded[name].dtype is tensor.dtype
        assert bytes_of(decoded[name]) == bytes_of(tensor)


@given(configs(), st.integers(0, 1000), st.integers(0, 5), st.booleans(), st.booleans())
@pytest.mark.parametrize("staged_bytes", [-1, 16384], ids=["direct", "staged"])
def test_a_batch_is_laid_out_as_its_samples(
    staged_bytes: int, config: BatchConfig, seed: int, n: int, strided: bool, arrays: bool
) -> None:
    batch = {spec.name: random_tensor(spec, seed + i, (n,)) for i, spec in enumerate(config.specs)}
    expected = [config.encode(**{name: tensor[i] for name, tensor in batch.items()}) for i in range(n)]
    if n:
        assert bytes_of(config.decode_batch(expected)["t0"]) == bytes_of(batch["t0"])
    given_batch: dict[str, Any] = {}
    for name, tensor in batch.items():
        tensor = as_strided(tensor) if strided else tensor
        given_batch[name] = (
            tensor.numpy() if arrays and config.get_spec(name).dtype in NUMPY_DTYPES else tensor
        )
    slots = slots_of(n, config.nbytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softs_fast.configs.batch._STAGED_BYTES", staged_bytes)
        config.encode_batch_into(given_batch, slots)
    assert [bytes(slot) for slot in slots] == expected


@pytest.mark.parametrize(
    "use",
    [
        lambda out: XY.views(out),
        lambda out: XY.encode_into(xy(1), out),
        lambda out: XY.encode_batch_into(xy(1, 1), [out]),
    ],
    ids=["views", "encode_into", "encode_batch_into"],
)
@pytest.mark.parametrize(
    ("out", "message"),
    [
        (bytes(32), r"32 bytes \(read-only: True"),
        (bytearray(31), "cannot write a sample of 32 bytes to memory of 31 bytes"),
        (bytearray(33), "to memory of 33 bytes"),
        (memoryview(bytearray(64))[::2], "contiguous: False"),
    ],
)
def test_memory_that_is_no_slot(use: Callable[[Any], object], out: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        use(out)


def test_memory_of_other_kinds() -> None:
    expected = XY.encode(**xy(5))
    for out in (np.zeros(32, np.uint8), np.zeros((2, 4), np.float32), memoryview(np.zeros(4))):
        XY.encode_into(xy(5), out)
        assert bytes(out) == expected
        XY.encode_batch_into(xy(5, 1), [out])
        assert bytes(out) == expected
        XY.views(out)["y"][...] = 9
        assert XY.decode(bytes(out))["y"] == 9


def test_samples_of_no_bytes() -> None:
    config = BatchConfig([TensorSpec("x", (0, 3), "bfloat16"), TensorSpec("y", (0,), "float32")])
    sample = {"x": torch.empty((0, 3), dtype=torch.bfloat16), "y": np.empty(0, np.float32)}
    config.encode_into(sample, bytearray())
    config.encode_batch_into({name: value[None] for name, value in sample.items()}, [bytearray()])
    assert config.views(bytearray())["x"].shape == (0, 3)


class Elsewhere(torch.Tensor):
    """A tensor that claims to be on a device."""

    is_cpu = False  # type: ignore[assignment]


def other_places() -> list[Callable[[torch.Tensor], torch.Tensor]]:
    places: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda tensor: tensor.as_subclass(Elsewhere)]
    if torch.cuda.is_available():
        places.append(lambda tensor: tensor.cuda())
    return places


@pytest.mark.parametrize("place", other_places())
@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *TORCH_DTYPES])
def test_tensors_on_a_device(place: Callable[[torch.Tensor], torch.Tensor], dtype: str) -> None:
    config = BatchConfig(
        [TensorSpec("pad", (1,), "bool"), TensorSpec("x", (5, 3), dtype), TensorSpec("y", (), dtype)]
    )
    batch = {spec.name: random_tensor(spec, 3, (4,)) for spec in config.specs}
    expected = [config.encode(**{name: tensor[i] for name, tensor in batch.items()}) for i in range(4)]
    moved = {name: place(as_strided(tensor)) for name, tensor in batch.items()}
    for staged_bytes in (-1, 16384):
        slots = slots_of(4, config.nbytes())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("softs_fast.configs.batch._STAGED_BYTES", staged_bytes)
            config.encode_batch_into(moved, slots)
        assert [bytes(slot) for slot in slots] == expected
    (slot,) = slots_of(1, config.nbytes())
    config.encode_into({name: tensor[2] for name, tensor in moved.items()}, slot)
    assert bytes(slot) == expected[2]


def test_tensors_with_a_gradient() -> None:
    for dtype in ("float32", "bfloat16"):
        config = BatchConfig([TensorSpec("x", (2,), dtype)])
        x = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=getattr(torch, dtype)))
        for tensor in (x, x * 2, (x * 2).as_subclass(Elsewhere)):
            slot = bytearray(config.nbytes())
            config.encode_into({"x": tensor}, slot)
            assert torch.equal(config.decode(slot)["x"], tensor.detach())
