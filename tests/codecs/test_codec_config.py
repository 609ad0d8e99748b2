"""Codecs in a BatchConfig: their texts, sizes and offsets, whole batches, and where they cannot be used."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from softs_fast import (
    BatchConfig,
    ConfigError,
    FilesystemMedium,
    ShmMedium,
    SoftIterableDataset,
    Supplier,
    TensorSpec,
)
from softs_fast.codecs import Cast, Int8, TopK, TopKLogits, as_codec

CONFIG = BatchConfig(
    [
        TensorSpec("flag", (), "bool"),
        TensorSpec("hidden", (5, 30), "float32", codec="cast:bfloat16"),
        TensorSpec("logits", (5, 100), "float32", codec=TopK(4)),
        TensorSpec("x", (3,), "float64"),
        TensorSpec("grads", (70,), "bfloat16", codec="int8:32:float16"),
        TensorSpec("none", (0, 8), "float32", codec="int8"),
        TensorSpec("y", (), "int64", codec="exact"),
    ]
)
SIZES = [1, 300, 5 * (4 * 6 + 4), 24, 70 + 3 * 2, 0, 8]


def batch_of(n: int, seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {
        "flag": torch.rand(n) > 0.5,
        "hidden": torch.randn(n, 5, 30),
        "logits": torch.randn(n, 5, 100),
        "x": torch.randn(n, 3, dtype=torch.float64),
        "grads": torch.randn(n, 70).bfloat16(),
        "none": torch.empty(n, 0, 8),
        "y": torch.arange(n),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    def flat(batch: dict[str, Any]) -> list[torch.Tensor]:
        return [
            part for value in batch.values() for part in (value if isinstance(value, tuple) else (value,))
        ]

    return list(a) == list(b) and all(torch.equal(x, y) for x, y in zip(flat(a), flat(b), strict=True))


def test_sizes_and_offsets() -> None:
    assert [spec.nbytes for spec in CONFIG.specs] == SIZES
    assert CONFIG.nbytes() == sum(SIZES)
    assert [CONFIG.get_offset(name) for name in CONFIG.tensor_names] == [
        sum(SIZES[:i]) for i in range(len(SIZES))
    ]
    assert CONFIG.has_codecs
    assert not BatchConfig([TensorSpec("y", (), "int64", codec="exact")]).has_codecs
    assert CONFIG.get_spec("y") == TensorSpec("y", (), "int64")


@pytest.mark.parametrize(
    "codec", [Cast("float16"), Int8(), Int8(64), Int8(256, "float16"), TopK(3), Cast("float8_e4m3fn")]
)
def test_texts(codec: Any) -> None:
    assert as_codec(str(codec)) == codec
    spec = TensorSpec("x", (4, 8), "float32", codec=codec)
    assert spec == TensorSpec("x", (4, 8), "float32", codec=str(codec))
    assert hash(spec) == hash(TensorSpec("x", [4, 8], "float32", codec=str(codec)))  # type: ignore[arg-type]
    assert repr(spec) == f"TensorSpec(name='x', shape=(4, 8), dtype='float32', codec='{codec}')"
    assert eval(repr(spec)) == spec


def test_texts_that_mean_nothing() -> None:
    texts = [
        "",
        "zip",
        "cast",
        "cast:",
        "cast:int4",
        "int8:x",
        "int8:64:float64",
        "int8:64:float16:1",
        "topk",
        "topk:0",
    ]
    for codec in (*texts, "topk:1.5", 7, {"k": 3}, b"topk:3"):
        with pytest.raises(ConfigError, match=r"codec|cast|int8|topk"):
            TensorSpec("x", (4, 8), "float32", codec=codec)


def test_dicts_yaml_and_hydra(tmp_path: Path) -> None:
    content = CONFIG.to_dict()
    assert [spec.get("codec") for spec in content["specs"]] == [
        None, "cast:bfloat16", "topk:4", None, "int8:32:float16", "int8:128", None,
    ]  # fmt: skip
    assert BatchConfig.from_dict(content) == CONFIG
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    assert BatchConfig.from_yaml(str(path)) == CONFIG
    node = OmegaConf.create(
        {
            "_target_": "softs_fast.BatchConfig",
            "specs": [
                {
                    "_target_": "softs_fast.TensorSpec",
                    "name": "l",
                    "shape": [9],
                    "dtype": "float32",
                    "codec": "topk:2",
                },
                {"name": "h", "shape": [9], "dtype": "float32", "codec": "cast:float16"},
            ],
        }
    )
    config = instantiate(node)
    assert [spec.codec for spec in config.specs] == ["topk:2", "cast:float16"]
    for twin in (pickle.loads(pickle.dumps(CONFIG)), copy.deepcopy(CONFIG)):
        assert twin == CONFIG
        sample = {name: tensor[0] for name, tensor in batch_of(1).items()}
        assert twin.encode(**sample) == CONFIG.encode(**sample)


@pytest.mark.parametrize("staged_bytes", [-1, 16384], ids=["direct", "staged"])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_batch_is_its_samples(n: int, staged_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softs_fast.configs.batch._STAGED_BYTES", staged_bytes)
    batch = batch_of(n)
    samples = [{name: tensor[i] for name, tensor in batch.items()} for i in range(n)]
    slots = [memoryview(bytearray(b"\xee") * CONFIG.nbytes()) for _ in range(n)]
    CONFIG.encode_batch_into(batch, slots)
    assert [bytes(slot) for slot in slots] == [CONFIG.encode(**sample) for sample in samples]
    for i, slot in enumerate(slots):
        sample = CONFIG.decode(slot)
        assert isinstance(sample["logits"], TopKLogits)
        assert torch.equal(sample["hidden"], samples[i]["hidden"].bfloat16().float())
        for name in CONFIG.tensor_names:
            assert same({name: CONFIG.decode_single(slot, name)}, {name: sample[name]})
    if n:
        stacked = CONFIG.decode_batch(slots)
        assert stacked["logits"].values.shape == (n, 5, 4)
        for i, slot in enumerate(slots):
            row = {
                name: TopKLogits(*(part[i] for part in value)) if isinstance(value, tuple) else value[i]
                for name, value in stacked.items()
            }
            assert same(row, CONFIG.decode(slot))


def test_decoded_tensors_own_their_memory() -> None:
    source = bytearray(CONFIG.encode(**{name: tensor[0] for name, tensor in batch_of(1).items()}))
    decoded = CONFIG.decode(source)
    before = decoded["hidden"].clone()
    source[:] = bytes(len(source))
    assert torch.equal(decoded["hidden"], before)
    decoded["logits"].indices.zero_()


def test_what_cannot_be_filled_in_place_or_shown() -> None:
    with pytest.raises(
        ConfigError, match='tensor "hidden" is stored as cast:bfloat16, so it cannot be filled in place'
    ):
        CONFIG.views(bytearray(CONFIG.nbytes()))
    with pytest.raises(
        ConfigError, match='fill_fn fills tensors in place, but "hidden" is stored as cast:bfloat16; use gen'
    ):
        Supplier(
            fill_fn=lambda product_id, out: None,
            product_ids=["m"],
            endpoint="ipc:///nowhere",
            slot_size=CONFIG.nbytes(),
            batch_config=CONFIG,
        )
    for medium_cls in (ShmMedium, FilesystemMedium):
        with pytest.raises(
            ConfigError, match='zero_copy hands out what is in the slots, but tensor "hidden" is stored as'
        ):
            SoftIterableDataset("m", "ipc:///nowhere", CONFIG, medium_cls, zero_copy=True)


def test_errors_name_the_tensor() -> None:
    sample = {name: tensor[0] for name, tensor in batch_of(1).items()}
    with pytest.raises(
        ConfigError, match=r'Shape mismatch: \(5, 99\) != \(5, 100\), expected by tensor "logits"'
    ):
        CONFIG.encode(**{**sample, "logits": torch.zeros(5, 99)})
    with pytest.raises(ConfigError, match=r"Tensor mismatch: missing=.'y'.*extra=.'z'"):
        CONFIG.encode(z=sample.pop("y"), **sample)
    with pytest.raises(ConfigError, match="Data length 3 != expected"):
        CONFIG.decode(bytes(3))
