"""Ragged tensors in a BatchConfig: bytes, round trips, broken samples, and where they cannot be used."""

import copy
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from any_samples import NUMPY_DTYPES, TORCH_DTYPES, as_strided, bytes_of, random_tensor, slots_of
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from softs_fast import (
    BatchConfig,
    ConfigError,
    FilesystemMedium,
    ShmMedium,
    SoftIterableDataset,
    Supplier,
    TensorSpec,
    WireError,
)
from softs_fast.tensors import RaggedTensor

CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("ids", (100,), "int32", ragged=True),
        TensorSpec("hidden", (40,), "float32", codec="cast:bfloat16"),
        TensorSpec("states", (30, 3), "bfloat16", ragged=True),
        TensorSpec("flag", (3,), "bool"),
    ]
)


def sample_of(config: BatchConfig, seed: int) -> dict[str, torch.Tensor]:
    """Tensors of any bits; each ragged one has any length, 0 and the greatest one often."""
    chosen = random.Random(seed)
    tensors = {}
    for i, spec in enumerate(config.specs):
        most = spec.shape[0] if spec.ragged else 0
        shape = (
            (chosen.choice([0, most, chosen.randint(0, most)]), *spec.shape[1:])
            if spec.ragged
            else spec.shape
        )
        tensors[spec.name] = random_tensor(TensorSpec(spec.name, shape, spec.dtype), seed + i)
    return tensors


@st.composite
def ragged_configs(draw: st.DrawFn) -> BatchConfig:
    dtypes = st.sampled_from(NUMPY_DTYPES + TORCH_DTYPES)
    shapes = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)
    specs = draw(st.lists(st.tuples(shapes, dtypes, st.booleans()), min_size=1, max_size=5))
    tensors = [
        TensorSpec(f"t{i}", shape, dtype, ragged=ragged) for i, (shape, dtype, ragged) in enumerate(specs)
    ]
    return BatchConfig([*tensors, TensorSpec("last", (4,), "bfloat16", ragged=True)])


def check_same(got: dict[str, Any], wanted: dict[str, torch.Tensor]) -> None:
    for name, tensor in wanted.items():
        assert got[name].shape == tensor.shape
        assert got[name].dtype is tensor.dtype
        assert bytes_of(got[name]) == bytes_of(tensor)


@given(ragged_configs(), st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([-1, 16384]))
def test_round_trips(config: BatchConfig, seed: int, n: int, staged_bytes: int) -> None:
    samples = [sample_of(config, seed + 10 * i) for i in range(n)]
    encoded = [config.encode(**sample) for sample in samples]
    for data, sample in zip(encoded, samples, strict=True):
        size = sum(len(bytes_of(tensor)) for tensor in sample.values())
        assert len(data) == config.sample_nbytes(data) == size + 8 * sum(spec.ragged for spec in config.specs)
        # A whole slot is decoded as well: what follows the sample does not count.
        for whole in (data, bytearray(data.ljust(config.nbytes(), b"\xee"))):
            decoded = config.decode(whole)
            assert list(decoded) == config.tensor_names
            check_same(decoded, sample)
            for name in config.tensor_names:
                check_same({name: config.decode_single(whole, name)}, {name: sample[name]})
    batch = {
        spec.name: (
            [sample[spec.name] for sample in samples]
            if spec.ragged
            else torch.stack([s[spec.name] for s in samples])
        )
        for spec in config.specs
    }
    slots = slots_of(n, config.nbytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("softs_fast.configs.batch._STAGED_BYTES", staged_bytes)
        config.encode_batch_into(batch, slots)
    for slot, data in zip(slots, encoded, strict=True):
        assert bytes(slot) == data.ljust(config.nbytes(), b"\xee"), "nothing is written behind the sample"
    for stacked in (config.decode_batch(slots), config.decode_batch(encoded), config.collate(samples)):
        assert list(stacked) == config.tensor_names
        for spec in config.specs:
            rows = stacked[spec.name].unbind() if spec.ragged else list(stacked[spec.name])
            for row, sample in zip(rows, samples, strict=True):
                check_same({spec.name: row}, {spec.name: sample[spec.name]})


@given(st.sampled_from(NUMPY_DTYPES + TORCH_DTYPES), st.integers(0, 6), st.integers(0, 10_000))
def test_a_spec_alone(dtype: str, length: int, seed: int) -> None:
    spec = TensorSpec("t", (6, 2), dtype, ragged=True)
    tensor = random_tensor(TensorSpec("t", (length, 2), dtype), seed)
    data = spec.encode(as_strided(tensor))
    assert data == struct.pack("=q", length) + bytes_of(tensor) == BatchConfig([spec]).encode(t=tensor)
    check_same({"t": spec.decode(data)}, {"t": tensor})
    assert spec.nbytes == BatchConfig([spec]).nbytes() == 8 + 12 * spec.torch_dtype.itemsize


def test_the_bytes() -> None:
    tensors = {
        "y": torch.tensor(7),
        "ids": torch.tensor([1, 2, 3], dtype=torch.int32),
        "hidden": torch.zeros(40),
        "states": torch.ones(2, 3, dtype=torch.bfloat16),
        "flag": torch.tensor([True, False, True]),
    }
    expected = (
        struct.pack("=qq", 3, 2)
        + struct.pack("=q", 7) + bytes(80) + b"\1\0\1"
        + struct.pack("=iii", 1, 2, 3) + struct.pack("=H", 0x3F80) * 6
    )  # fmt: skip
    assert CONFIG.encode(**tensors) == expected
    assert [CONFIG.get_offset(name) for name in ("y", "hidden", "flag")] == [16, 24, 104]
    assert CONFIG.nbytes() == sum(spec.nbytes for spec in CONFIG.specs) == 107 + 400 + 180
    with pytest.raises(ConfigError, match='tensor "ids" is ragged: where it starts depends on the lengths'):
        CONFIG.get_offset("ids")


def test_bytes_of_long_texts_are_those_of_their_tokens() -> None:
    config = BatchConfig([TensorSpec("ids", (2048,), "int32", ragged=True), TensorSpec("y", (), "int64")])
    poison, n = 0xEE, 64
    lengths = np.random.default_rng(0).integers(150, 500, n).tolist()
    slots = slots_of(n, config.nbytes())
    config.encode_batch_into(
        {
            "ids": [torch.full((length,), 1, dtype=torch.int32) for length in lengths],
            "y": torch.ones(n).long(),
        },
        slots,
    )
    # No byte of these samples is poison, so what is poison was not written.
    n_written = sum(int((np.frombuffer(slot, np.uint8) != poison).sum()) for slot in slots)
    assert 4 * sum(lengths) <= n_written <= 1.05 * 4 * sum(lengths)
    assert n_written < 0.2 * n * config.nbytes()


@pytest.mark.parametrize("kind", ["list", "tuple", "numpy", "ragged", "padded", "nested"])
def test_forms_of_a_batch(kind: str) -> None:
    config = BatchConfig([TensorSpec("x", (6, 2), "float32", ragged=True)])
    samples = [torch.randn(n, 2) for n in (3, 0, 6, 1)]
    ragged = RaggedTensor.from_samples(samples)
    forms: dict[str, Any] = {
        "list": samples,
        "tuple": tuple(samples),
        "numpy": [sample.numpy() for sample in samples],
        "ragged": ragged,
        "padded": RaggedTensor.from_padded(ragged.padded(), ragged.lengths),
        "nested": ragged.nested(),
    }
    slots = slots_of(4, config.nbytes())
    config.encode_batch_into({"x": forms[kind]}, slots)
    for slot, sample in zip(slots, samples, strict=True):
        assert torch.equal(config.decode(slot)["x"], sample)
    config.encode_batch_into({"x": []}, [])


def test_dicts_yaml_and_copies(tmp_path: Path) -> None:
    content = CONFIG.to_dict()
    assert [spec.get("ragged") for spec in content["specs"]] == [None, True, None, True, None]
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    sample = sample_of(CONFIG, 3)
    twins = (
        BatchConfig.from_dict(content),
        BatchConfig.from_yaml(str(path)),
        pickle.loads(pickle.dumps(CONFIG)),
        copy.deepcopy(CONFIG),
    )
    for twin in twins:
        assert twin == CONFIG
        assert twin.encode(**sample) == CONFIG.encode(**sample)
    spec = CONFIG.get_spec("ids")
    assert repr(spec) == "TensorSpec(name='ids', shape=(100,), dtype='int32', ragged=True)"
    assert eval(repr(spec)) == spec
    assert spec != TensorSpec("ids", (100,), "int32")
    assert BatchConfig([spec]).nbytes() != BatchConfig([TensorSpec("ids", (100,), "int32")]).nbytes()


def test_specs_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match='tensor "x" is ragged and needs a first dimension'):
        TensorSpec("x", (), "int32", ragged=True)
    with pytest.raises(ConfigError, match='tensor "x" is ragged and cannot have the codec int8:128'):
        TensorSpec("x", (3,), "float32", codec="int8", ragged=True)
    with pytest.raises(ConfigError, match='tensor "x": ragged must be True or False, got 1'):
        TensorSpec("x", (3,), "float32", ragged=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(101, dtype=torch.int32), 'tensor "ids" has length 101, need 0 to 100'),
        (torch.zeros(3), r"Dtype mismatch: torch.float32 != torch.int32"),
        (torch.zeros((3, 1), dtype=torch.int32), r"Shape mismatch: \(3, 1\) != \(3,\)"),
        (torch.tensor(3, dtype=torch.int32), r"Shape mismatch: \(\) != \(0,\)"),
        ([1, 2], 'tensor "ids" is of type list'),
        (7, r"Shape mismatch: \(\) != \(0,\)"),
    ],
)
def test_values_that_do_not_fit(value: Any, text: str) -> None:
    sample = {**sample_of(CONFIG, 1), "ids": value}
    with pytest.raises(ConfigError, match=text):
        CONFIG.encode(**sample)
    good = sample_of(CONFIG, 1)
    batch: dict[str, Any] = {name: tensor[None] for name, tensor in good.items()}
    with pytest.raises(ConfigError, match=text):
        CONFIG.encode_batch_into(
            {**batch, "states": [good["states"]], "ids": [value]}, slots_of(1, CONFIG.nbytes())
        )


def test_batches_that_do_not_fit() -> None:
    config = BatchConfig([TensorSpec("x", (4,), "float32", ragged=True)])
    for value, text in (
        (
            torch.zeros(2, 3),
            'tensor "x" is ragged: need a list of 2 tensors or arrays, a RaggedTensor or a nested',
        ),
        ([torch.zeros(2)], 'tensor "x" is of 1 samples, need 2'),
        (RaggedTensor(torch.zeros(4), torch.tensor([1, 1])), r"Shape mismatch: \(4,\) != \(2,\)"),
        (RaggedTensor(torch.zeros(5), torch.tensor([5, 0])), "has length 5, need 0 to 4"),
        (RaggedTensor(torch.zeros(2), torch.tensor([3, -1])), "lengths must be whole numbers from 0 on"),
        (RaggedTensor(torch.zeros(2), torch.tensor([1.0, 1.0])), "lengths must be whole numbers"),
        (RaggedTensor(torch.zeros(2), torch.tensor([[1, 1]])), "lengths must be whole numbers"),
    ):
        with pytest.raises(ConfigError, match=text):
            config.encode_batch_into({"x": value}, slots_of(2, config.nbytes()))


@pytest.mark.parametrize("length", [-1, 101, 2**40, -(2**63), 2**63 - 1])
def test_lengths_that_no_sample_has(length: int) -> None:
    data = bytearray(CONFIG.encode(**sample_of(CONFIG, 5)).ljust(CONFIG.nbytes(), b"\0"))
    struct.pack_into("=q", data, 0, length)
    for read in (
        CONFIG.decode,
        CONFIG.sample_nbytes,
        lambda d: CONFIG.decode_batch([d]),
        lambda d: CONFIG.decode_single(d, "states"),
    ):
        with pytest.raises(WireError, match=f'tensor "ids" has length {length}, need 0 to 100'):
            read(data)


@given(st.binary(max_size=CONFIG.nbytes() + 3), st.integers(-2, 102), st.integers(-2, 32), st.booleans())
def test_any_bytes_are_decoded_or_refused(data: bytes, ids: int, states: int, has_lengths: bool) -> None:
    if has_lengths:
        data = struct.pack("=qq", ids, states) + data[16:]
    try:
        sample = CONFIG.decode(data)
    except (WireError, ConfigError):
        return
    assert CONFIG.encode(**sample)[:16] == data[:16]
    assert CONFIG.sample_nbytes(data) <= len(data) <= CONFIG.nbytes()


def test_samples_of_other_sizes() -> None:
    data = CONFIG.encode(**{**sample_of(CONFIG, 2), "ids": torch.ones(50, dtype=torch.int32)})
    for short in (data[:-1], data[:200], data[:16]):
        with pytest.raises(WireError, match=f"a sample of {len(data)} bytes ends after {len(short)}"):
            CONFIG.decode(short)
    for other, text in ((data[:15], "at least 16"), (bytes(CONFIG.nbytes() + 1), "at most 687")):
        with pytest.raises(ConfigError, match=f"Data length {len(other)} != expected, {text}"):
            CONFIG.decode(other)


def test_where_ragged_tensors_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match='tensor "ids" is ragged, so it cannot be filled in place'):
        CONFIG.views(bytearray(CONFIG.nbytes()))
    config = BatchConfig([TensorSpec("ids", (100,), "int32", ragged=True)])
    with pytest.raises(ConfigError, match='fill_fn fills tensors in place, but "ids" is ragged; use gen'):
        Supplier(
            fill_fn=lambda product_id, out: None,
            product_ids=["m"],
            endpoint="ipc:///nowhere",
            batch_config=config,
        )
    for medium_cls in (ShmMedium, FilesystemMedium):
        with pytest.raises(ConfigError, match='tensor "ids" is ragged: the slots of a batch have gaps'):
            SoftIterableDataset("m", "ipc:///nowhere", config, medium_cls, zero_copy=True)
