"""Codecs of a user's: their registration, their texts, and what is refused of them."""

import copy
import dataclasses
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from nibbles import MARK, Nibbles

from softs_fast import BatchConfig, ConfigError, TensorSpec, WireError
from softs_fast.codecs import CustomCodec, as_codec, custom, register_codec, texts

CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("x", (3, 5), "float32", codec=Nibbles(0.5)),
        TensorSpec("h", (4,), "float32", codec="cast:bfloat16"),
    ]
)


def batch_of(n: int) -> dict[str, torch.Tensor]:
    return {
        "y": torch.arange(n),
        "x": (torch.arange(n * 15) % 16).view(n, 3, 5) * 0.5,
        "h": torch.arange(4.0).expand(n, 4),
    }


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers ends with it."""
    monkeypatch.setattr(custom, "_REGISTERED", dict(custom._REGISTERED))
    texts._parsed.cache_clear()


class Bytes(CustomCodec):
    """Stores uint8 tensors as they are; a base for codecs that do one thing wrong."""

    name: ClassVar[str] = "bytes_as_they_are"

    def nbytes(self, shape: tuple[int, ...], dtype: str) -> int:
        return int(np.prod(shape))

    def encode(self, values: torch.Tensor) -> Any:
        return values.flatten(1)

    def decode(self, data: torch.Tensor, shape: tuple[int, ...], dtype: str) -> Any:
        return data.view(-1, *shape)


def made(**members: Any) -> type[Bytes]:
    """A registered class like Bytes, with other members."""
    return register_codec(type("Made", (Bytes,), {"name": "made", **members}))


def test_it_goes_into_a_sample_and_back() -> None:
    assert [spec.nbytes for spec in CONFIG.specs] == [8, 9, 8]
    batch = batch_of(3)
    slots = [bytearray(CONFIG.nbytes()) for _ in range(3)]
    CONFIG.encode_batch_into(batch, slots)
    for name, tensor in CONFIG.decode_batch(slots).items():
        assert torch.equal(tensor, batch[name])
        assert tensor.dtype is batch[name].dtype
    for i, slot in enumerate(slots):
        sample = {name: tensor[i] for name, tensor in batch.items()}
        assert CONFIG.encode(**sample) == slot
        assert torch.equal(CONFIG.decode(slot)["x"], sample["x"])
        assert torch.equal(CONFIG.decode_single(slot, "x"), sample["x"])
    CONFIG.encode_batch_into({name: tensor[:0] for name, tensor in batch.items()}, [])


@pytest.mark.parametrize(
    "form",
    [
        lambda tensor: tensor.numpy(),
        lambda tensor: np.ascontiguousarray(tensor.numpy()[::-1])[::-1],
        lambda tensor: np.frombuffer(tensor.numpy().tobytes(), np.float32).reshape(3, 5),
        lambda tensor: tensor.clone().requires_grad_(),
        lambda tensor: tensor.t().contiguous().t(),
    ],
    ids=["array", "negative strides", "read-only", "with gradient", "strided"],
)
def test_what_can_be_encoded(form: Callable[[torch.Tensor], Any]) -> None:
    spec, x = CONFIG.get_spec("x"), batch_of(1)["x"][0]
    assert torch.equal(spec.decode(spec.encode(form(x))), x)


def test_a_number() -> None:
    spec = TensorSpec("x", (), "float32", codec="nibbles:0.5")
    out = bytearray(2)
    BatchConfig([spec]).encode_into({"x": 1.5}, out)
    assert out == bytes([MARK, 0x30])
    assert spec.decode(out).item() == 1.5


def test_texts_dicts_and_yaml(tmp_path: Path) -> None:
    assert CONFIG.get_spec("x").codec == "nibbles:0.5"
    assert as_codec("nibbles:0.5") == as_codec(Nibbles(0.5)) == Nibbles(0.5)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG.to_dict()))
    assert "codec: nibbles:0.5" in path.read_text()
    for twin in (
        BatchConfig.from_dict(CONFIG.to_dict()),
        BatchConfig.from_yaml(str(path)),
        pickle.loads(pickle.dumps(CONFIG)),
        copy.deepcopy(CONFIG),
    ):
        assert twin == CONFIG
        sample = {name: tensor[0] for name, tensor in batch_of(1).items()}
        assert twin.encode(**sample) == CONFIG.encode(**sample)


@pytest.mark.parametrize("text", ["nibble", "os.system:true", "nibbles.Nibbles:1.0", "subprocess", "yaml:1"])
def test_a_name_that_is_not_registered_is_refused_and_nothing_is_imported(text: str) -> None:
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=rf"unknown codec {text!r}.*a registered one: .*nibbles"):
        BatchConfig.from_dict({"specs": [{"name": "x", "shape": [4], "dtype": "float32", "codec": text}]})
    assert set(sys.modules) == before


def test_a_process_that_has_not_registered_it() -> None:
    program = f"""
import pickle, sys
import softs_fast
try:
    softs_fast.BatchConfig.from_dict({CONFIG.to_dict()})
except softs_fast.ConfigError as error:
    print(error)
config = pickle.loads({pickle.dumps(CONFIG)!r})
try:
    config.decode(bytes(25))
except softs_fast.ConfigError as error:
    print(error)
print("nibbles" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    first, second, imported = shown.stdout.splitlines()
    assert first == second
    assert "unknown codec 'nibbles:0.5'" in first
    assert first.endswith("or a registered one: none is")
    assert imported == "False"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nibbles:x", r'codec "nibbles": ValueError.*could not convert'),
        ("nibbles", r'codec "nibbles": ValueError.*could not convert'),
        ("nibbles:1", r"""codec "nibbles": from_parameters\('1'\) made Nibbles\(step=1.0\)"""),
    ],
)
def test_parameters_that_mean_nothing(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        as_codec(text)


def test_a_codec_without_parameters_takes_none(registry: None) -> None:
    register_codec(Bytes)
    assert str(as_codec("bytes_as_they_are")) == "bytes_as_they_are"
    with pytest.raises(ConfigError, match="codec \"bytes_as_they_are\": it takes no parameters, got '1'"):
        as_codec("bytes_as_they_are:1")


def test_a_codec_must_be_registered_to_be_used() -> None:
    with pytest.raises(ConfigError, match=r"codec Bytes is not registered; call .*register_codec"):
        TensorSpec("x", (4,), "uint8", codec=Bytes())


def test_what_cannot_be_registered(registry: None) -> None:
    def refuse(codec: Any, complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint):
            register_codec(codec)

    for name in ("cast", "int8", "topk", "exact"):
        refuse(type("Mine", (Bytes,), {"name": name}), f"the name '{name}' is taken by softs_fast")
    refuse(type("Mine", (Bytes,), {"name": "nibbles"}), "the name 'nibbles' is taken by Nibbles")
    refuse(Nibbles, "the name 'nibbles' is taken by Nibbles")
    for name in ("", "A", "a:b", "1a", "a b", "a.b", None, 3, "nibbles\n"):
        refuse(type("Mine", (Bytes,), {"name": name}), "codec Mine: name must be a to z")
    refuse(type("Mine", (CustomCodec,), {"name": "mine"}), "abstract methods: decode, encode, nbytes")
    refuse(dict, "must be a class derived from CustomCodec")
    refuse(Bytes(), "must be a class derived from CustomCodec")
    unhashable = dataclasses.make_dataclass("Mine", ["k"], bases=(Bytes,))
    refuse(
        type("Mine", (unhashable,), {"name": "mine", "__hash__": None}), "cannot be hashed.*frozen dataclass"
    )
    assert custom.registered_names() == ["nibbles"]


@pytest.mark.parametrize("n_bytes", [-1, 1.5, None, True, "4"])
def test_sizes_that_are_none(registry: None, n_bytes: Any) -> None:
    codec = made(nbytes=lambda self, shape, dtype: n_bytes)()
    with pytest.raises(
        ConfigError, match='tensor "x": nbytes of codec "made" must be a whole number from 0 on'
    ):
        TensorSpec("x", (4,), "uint8", codec=codec)


def test_tensors_that_it_does_not_take() -> None:
    with pytest.raises(ConfigError, match='tensor "x": nibbles stores floats, not int64'):
        TensorSpec("x", (4,), "int64", codec=Nibbles())


@pytest.mark.parametrize(
    ("result", "have"),
    [
        (lambda values: values.flatten(1)[:, 1:], r"uint8 \[2, 3\]"),
        (lambda values: values.flatten(), r"uint8 \[8\]"),
        (lambda values: values[:1].flatten(1), r"uint8 \[1, 4\]"),
        (lambda values: values.flatten(1).to(torch.int8), r"int8 \[2, 4\]"),
        (lambda values: b"12345678", "an object of type bytes"),
    ],
)
def test_what_it_may_not_encode_to(registry: None, result: Any, have: str) -> None:
    spec = TensorSpec("x", (4,), "uint8", codec=made(encode=lambda self, values: result(values))())
    slots = [bytearray(4), bytearray(4)]
    with pytest.raises(
        ConfigError, match=rf'tensor "x": codec "made" encoded it as {have}, need a tensor uint8 \[2, 4\]'
    ):
        BatchConfig([spec]).encode_batch_into({"x": torch.ones(2, 4, dtype=torch.uint8)}, slots)
    assert slots == [bytes(4), bytes(4)]


@pytest.mark.parametrize(
    ("result", "have"),
    [
        (lambda data: data[:, 1:], r"uint8 \[2, 3\]"),
        (lambda data: data.view(8), r"uint8 \[8\]"),
        (lambda data: data.float(), r"float32 \[2, 4\]"),
        (lambda data: data.numpy(), "an object of type ndarray"),
    ],
)
def test_what_it_may_not_decode_to(registry: None, result: Any, have: str) -> None:
    spec = TensorSpec("x", (4,), "uint8", codec=made(decode=lambda self, data, shape, dtype: result(data))())
    with pytest.raises(
        ConfigError, match=rf'tensor "x": codec "made" decoded it to {have}, need a tensor uint8 \[2, 4\]'
    ):
        BatchConfig([spec]).decode_batch([bytes(4), bytes(4)])


def test_another_device_than_the_host(registry: None) -> None:
    codec = made(decode=lambda self, data, shape, dtype: data.to("meta"))()
    with pytest.raises(ConfigError, match='codec "made" decoded it to meta, not the host'):
        TensorSpec("x", (4,), "uint8", codec=codec).decode(bytes(4))


def test_bytes_that_it_does_not_write() -> None:
    good = CONFIG.encode(**{name: tensor[0] for name, tensor in batch_of(1).items()})
    bad = good[:8] + b"\0" + good[9:]
    with pytest.raises(
        WireError, match=r'tensor "x" cannot be decoded by codec "nibbles:0.5": a row begins with \[165, 0\]'
    ):
        CONFIG.decode_batch([good, bad])
    for length in (CONFIG.nbytes() - 1, CONFIG.nbytes() + 1, 0):
        with pytest.raises(ConfigError, match=f"Data length {length} != expected 25"):
            CONFIG.decode(bytes(length))
    with pytest.raises(ConfigError, match="Data length 8 != expected 9"):
        CONFIG.get_spec("x").decode(bytes(8))


def test_any_exception_of_decode_names_the_tensor(registry: None) -> None:
    def fail(self: Any, data: Any, shape: Any, dtype: Any) -> Any:
        raise RuntimeError("torn")

    spec = TensorSpec("x", (4,), "uint8", codec=made(decode=fail)())
    with pytest.raises(WireError, match=r'tensor "x".*codec "made": RuntimeError\(\'torn\'\)') as caught:
        spec.decode(bytes(4))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_values_that_it_cannot_hold() -> None:
    spec = CONFIG.get_spec("x")
    with pytest.raises(ConfigError, match='tensor "x": nibbles stores 0 to 15'):
        spec.encode(torch.full((3, 5), 100.0))
    with pytest.raises(ConfigError, match=r'Dtype mismatch.*expected by tensor "x"'):
        spec.encode(torch.zeros(3, 5, dtype=torch.float64))
    with pytest.raises(ConfigError, match=r'Shape mismatch.*expected by tensor "x"'):
        spec.encode(torch.zeros(3, 4))


def test_a_decoded_tensor_keeps_its_bytes_and_shares_none_with_the_sample(registry: None) -> None:
    spec = TensorSpec("x", (4,), "uint8", codec=register_codec(Bytes)())
    source = bytearray(b"abcd")
    decoded = spec.decode(source)
    source[:] = bytes(4)
    assert bytes(decoded.tolist()) == b"abcd"
