"""Slots shown as tensors."""

import numpy as np
import pytest
import torch
from any_samples import TORCH_DTYPES, bytes_of, configs, random_tensor, slots_of
from hypothesis import given
from hypothesis import strategies as st

from softs_fast import BatchConfig, ConfigError, TensorSpec


@given(configs(), st.integers(0, 1000))
def test_views_show_and_take_what_decode_gives(config: BatchConfig, seed: int) -> None:
    sample = {spec.name: random_tensor(spec, seed + i) for i, spec in enumerate(config.specs)}
    expected = config.encode(**sample)
    slot = bytearray(expected)
    # One without elements is nowhere, and so never unaligned.
    half = [config.get_offset(spec.name) for spec in config.specs if spec.dtype == "bfloat16" and spec.numel]
    if half and any(offset % 2 for offset in (*half, config.nbytes())):
        with pytest.raises(
            ConfigError, match=r'tensor "t\d" \(bfloat16\) would be unaligned.*order the tensors'
        ):
            config.views(slot)
        return
    views = config.views(slot)
    assert list(views) == config.tensor_names
    for name, view in views.items():
        is_tensor = config.get_spec(name).dtype in TORCH_DTYPES
        assert isinstance(view, torch.Tensor if is_tensor else np.ndarray)
        tensor = view if is_tensor else torch.from_numpy(np.array(view))
        assert tensor.shape == sample[name].shape
        assert tensor.dtype is sample[name].dtype
        assert bytes_of(tensor) == bytes_of(sample[name])
    slot[:] = b"\0" * len(slot)
    for name, view in views.items():
        view[...] = sample[name] if isinstance(view, torch.Tensor) else sample[name].numpy()
    assert slot == expected


def test_unaligned_arrays_in_place() -> None:
    config = BatchConfig([TensorSpec("flag", (), "bool"), TensorSpec("x", (3,), "float64")])
    slots = slots_of(3, config.nbytes())
    for i, slot in enumerate(slots):
        views = config.views(slot)
        views["flag"][...] = True
        views["x"][...] = np.arange(3)
        views["x"] += i
    assert [config.decode(slot)["x"].tolist() for slot in slots] == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_bfloat16_at_an_odd_offset_cannot_be_shown() -> None:
    config = BatchConfig(
        [TensorSpec(name, (), dtype) for name, dtype in [("a", "bool"), ("x", "bfloat16"), ("b", "bool")]]
    )
    with pytest.raises(
        ConfigError, match=r'"x" \(bfloat16\) would be unaligned at byte 1 of samples of 4 bytes'
    ):
        config.views(bytearray(4))


def test_an_odd_sample_cannot_show_bfloat16_even_where_it_starts_aligned() -> None:
    config = BatchConfig([TensorSpec("x", (2,), "bfloat16"), TensorSpec("flag", (), "bool")])
    for slot in slots_of(2, 5):
        with pytest.raises(
            ConfigError, match=r'"x" \(bfloat16\) .* byte 0 of samples of 5 bytes.*multiple of 2'
        ):
            config.views(slot)
