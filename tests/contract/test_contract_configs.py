"""TensorSpec and BatchConfig: same bytes, same tensors, same refusals."""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import softs
import torch
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import softs_fast

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def sample_tensor(shape: tuple[int, ...], dtype: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 100, shape, generator=generator)
    return (values % 2 if dtype == "bool" else values).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_spec_round_trip(lib: ModuleType, dtype: str, shape: tuple[int, ...]) -> None:
    spec = lib.TensorSpec("x", shape, dtype)
    tensor = sample_tensor(shape, dtype)
    data = spec.encode(tensor)
    assert type(data) is bytes
    assert len(data) == spec.nbytes == tensor.numel() * tensor.element_size()
    assert spec.numel == tensor.numel()
    assert spec.torch_dtype is tensor.dtype
    decoded = spec.decode(data)
    assert decoded.dtype is tensor.dtype
    assert torch.equal(decoded, tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_names(sub: Callable[[str], ModuleType], dtype: str) -> None:
    configs = sub("configs")
    assert configs.dtype_to_torch(dtype) is getattr(torch, dtype)
    assert configs.torch_dtype_to_str(getattr(torch, dtype)) == dtype


def test_unknown_dtypes(sub: Callable[[str], ModuleType]) -> None:
    with pytest.raises(ValueError, match="Unsupported dtype: float12"):
        sub("configs").dtype_to_torch("float12")
    with pytest.raises(ValueError, match=r"Unsupported torch dtype: torch\.complex64"):
        sub("configs").torch_dtype_to_str(torch.complex64)


def test_encode_takes_any_strides_and_gradients(lib: ModuleType, expect: Callable[..., Any]) -> None:
    spec = lib.TensorSpec("x", (3, 2), "bfloat16")
    tensor = sample_tensor((2, 3), "bfloat16").t()
    assert spec.encode(tensor) == tensor.contiguous().view(torch.uint16).numpy().tobytes()
    with_gradient = torch.zeros(2, requires_grad=True)
    refusal = expect(softs=RuntimeError, softs_fast=None)
    floats = lib.TensorSpec("x", (2,), "float32")
    if refusal is None:
        assert floats.encode(with_gradient) == bytes(8)
    else:
        with pytest.raises(refusal):
            floats.encode(with_gradient)


def test_encode_refuses_another_shape_or_dtype(lib: ModuleType) -> None:
    spec = lib.TensorSpec("x", (2, 3), "float32")
    with pytest.raises(ValueError, match=r"Shape mismatch: \(3, 2\) != \(2, 3\)"):
        spec.encode(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"Dtype mismatch: torch\.float64 != torch\.float32"):
        spec.encode(torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="Data length 23 != expected 24"):
        spec.decode(bytes(23))


def test_sample_layout(lib: ModuleType) -> None:
    config = lib.BatchConfig(
        [
            lib.TensorSpec("a", (3,), "int8"),
            lib.TensorSpec("b", (2, 2), "float32"),
            lib.TensorSpec("c", (), "int64"),
        ]
    )
    tensors = {"a": sample_tensor((3,), "int8"), "b": sample_tensor((2, 2), "float32"), "c": torch.tensor(7)}
    data = config.encode(c=tensors["c"], a=tensors["a"], b=tensors["b"])
    assert data == b"".join(tensors[name].numpy().tobytes() for name in "abc")
    assert config.tensor_names == ["a", "b", "c"]
    assert [config.get_offset(name) for name in "abc"] == [0, 3, 19]
    assert config.nbytes() == len(data) == 27
    assert config.get_spec("b") == lib.TensorSpec("b", (2, 2), "float32")
    decoded = config.decode(data)
    assert list(decoded) == ["a", "b", "c"]
    for name, tensor in tensors.items():
        assert torch.equal(decoded[name], tensor)
        assert torch.equal(config.decode_single(data, name), tensor)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_decoded_tensors_own_their_memory(lib: ModuleType, kind: Callable[[bytes], Any]) -> None:
    config = lib.make_xy_config((3,), "int8", (2,), "float32")
    source = bytearray(config.encode(x=torch.ones(3, dtype=torch.int8), y=torch.ones(2)))
    decoded = config.decode(kind(source))
    source[:] = bytes(len(source))
    decoded["x"].add_(1)
    assert decoded["x"].tolist() == [2, 2, 2]
    assert decoded["y"].tolist() == [1, 1]
    for tensor in decoded.values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
        assert tensor.data_ptr() % tensor.element_size() == 0


def test_encode_refuses_other_names(lib: ModuleType) -> None:
    config = lib.make_xy_config((1,), "int8", (1,), "int8")
    one = torch.zeros(1, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"Tensor mismatch: .*y.*z"):
        config.encode(x=one, z=one)
    with pytest.raises(ValueError, match="Data length 3 != expected 2"):
        config.decode(bytes(3))
    for method in (config.get_spec, config.get_offset, lambda name: config.decode_single(b"  ", name)):
        with pytest.raises(KeyError, match="Unknown tensor 'q'"):
            method("q")


def test_invalid_configs(lib: ModuleType) -> None:
    spec = lib.TensorSpec("x", (1,), "int8")
    with pytest.raises(ValueError, match=r"Duplicate tensor names: \['x', 'x'\]"):
        lib.BatchConfig([spec, spec])
    with pytest.raises(TypeError, match="Expected TensorSpec or dict-like"):
        lib.BatchConfig([("x", (1,), "int8")])
    with pytest.raises(TypeError):
        lib.BatchConfig([{"name": "x", "shape": (1,)}])
    with pytest.raises(TypeError):
        lib.BatchConfig([{"name": "x", "shape": (1,), "dtype": "int8", "colour": "red"}])
    with pytest.raises(ValueError, match="Unsupported dtype: int12"):
        lib.BatchConfig([{"name": "x", "shape": (1,), "dtype": "int12"}])


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("", (1,), "int8"),
        (7, (1,), "int8"),
        ("x", (-1, 2), "int8"),
        ("x", (1.5,), "int8"),
        ("x", (True,), "int8"),
        ("x", 5, "int8"),
        ("x", "12", "int8"),
        ("x", (1,), "int12"),
        ("x", (1,), ["int8"]),
        ("x", (1,), None),
    ],
)
def test_specs_that_would_corrupt_later(
    lib: ModuleType, expect: Callable[..., Any], name: Any, shape: Any, dtype: Any
) -> None:
    if expect(softs=True, softs_fast=False):
        assert lib.TensorSpec(name, shape, dtype).name == name
    else:
        with pytest.raises(ValueError, match=r"name|dimension|shape|dtype"):
            lib.TensorSpec(name, shape, dtype)


def test_specs_are_frozen(lib: ModuleType, expect: Callable[..., Any]) -> None:
    spec = lib.TensorSpec("x", (1,), "int8")
    if expect(softs=True, softs_fast=False):
        spec.dtype = "int64"
        assert spec.nbytes == 8
    else:
        with pytest.raises(AttributeError):
            spec.dtype = "int64"
        assert hash(spec) == hash(lib.TensorSpec("x", [1], "int8"))


def test_shapes_from_lists(lib: ModuleType, expect: Callable[..., Any]) -> None:
    config = lib.BatchConfig.from_dict({"specs": [{"name": "x", "shape": [2, 3], "dtype": "float32"}]})
    assert config.specs[0].shape == expect(softs=[2, 3], softs_fast=(2, 3))
    assert config.decode(bytes(24))["x"].shape == (2, 3)
    if expect(softs=True, softs_fast=False):
        with pytest.raises(ValueError, match="Shape mismatch"):
            config.encode(x=torch.zeros(2, 3))
    else:
        assert config.encode(x=torch.zeros(2, 3)) == bytes(24)


def test_dicts_and_yaml(lib: ModuleType, tmp_path: Path) -> None:
    content = {
        "specs": [
            {"name": "x", "shape": [2], "dtype": "float32"},
            {"name": "y", "shape": [], "dtype": "bool"},
        ]
    }
    config = lib.BatchConfig.from_dict(content)
    assert config.to_dict() == content
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(content)))
    assert lib.BatchConfig.from_yaml(str(path)).to_dict() == content
    assert lib.BatchConfig.from_dict({}).nbytes() == 0


def test_hydra(lib: ModuleType, package: str) -> None:
    node = OmegaConf.create(
        {
            "_target_": f"{package}.BatchConfig",
            "specs": [
                {"name": "x", "shape": [4], "dtype": "bfloat16"},
                {"_target_": f"{package}.TensorSpec", "name": "y", "shape": [2, 2], "dtype": "int64"},
            ],
        }
    )
    config = instantiate(node)
    assert isinstance(config, lib.BatchConfig)
    assert all(type(spec) is lib.TensorSpec for spec in config.specs)
    assert config.nbytes() == 40
    assert lib.BatchConfig(node.specs).tensor_names == ["x", "y"]


def test_configs_compare_and_pickle(lib: ModuleType) -> None:
    config = lib.make_xy_config((2,), "float32", (), "int64")
    assert config == lib.make_xy_config((2,), "float32", (), "int64")
    assert config != lib.make_xy_config((3,), "float32", (), "int64")
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert copy.decode(bytes(16))["x"].tolist() == [0, 0]
    assert repr(config.specs[0]) == "TensorSpec(name='x', shape=(2,), dtype='float32')"


def test_empty_tensors(lib: ModuleType, expect: Callable[..., Any]) -> None:
    spec = lib.TensorSpec("x", (0, 3), "float32")
    assert spec.encode(torch.zeros(0, 3)) == b""
    if expect(softs=True, softs_fast=False):
        with pytest.raises(ValueError, match="buffer length"):
            spec.decode(b"")
    else:
        assert spec.decode(b"").shape == (0, 3)


@given(
    specs=st.lists(
        st.tuples(st.lists(st.integers(1, 5), max_size=3).map(tuple), st.sampled_from(DTYPES)),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 2**31),
)
def test_both_packages_agree_on_every_byte(specs: list[tuple[tuple[int, ...], str]], seed: int) -> None:
    theirs, ours = (
        module.BatchConfig([module.TensorSpec(f"t{i}", *spec) for i, spec in enumerate(specs)])
        for module in (softs, softs_fast)
    )
    tensors = {f"t{i}": sample_tensor(*spec, seed=seed + i) for i, spec in enumerate(specs)}
    data = ours.encode(**tensors)
    assert data == theirs.encode(**tensors)
    for name, tensor in theirs.decode(data).items():
        assert torch.equal(ours.decode(data)[name], tensor)
        assert torch.equal(ours.decode_batch([data, data])[name], torch.stack([tensor, tensor]))
