"""Samples and batches written straight into slots, and slots shown as tensors."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softs_fast import BatchConfig, ConfigError, TensorSpec

NUMPY_DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]
TORCH_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
XY = BatchConfig([TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (), "int64")])


def slots_of(n: int, slot_size: int) -> list[memoryview]:
    """Slots that lie end to end, as in a segment."""
    memory = memoryview(bytearray(b"\xee") * (n * slot_size))
    return [memory[i * slot_size : (i + 1) * slot_size] for i in range(n)]


def xy(number: float, n: int | None = None) -> dict[str, torch.Tensor]:
    rows = () if n is None else (n,)
    return {"x": torch.full((*rows, 2, 3), float(number)), "y": torch.full(rows, int(number))}


def random_tensor(spec: TensorSpec, seed: int, rows: tuple[int, ...] = ()) -> torch.Tensor:
    """Any bits that the dtype has."""
    shape = (*rows, *spec.shape)
    n_elements = int(np.prod(shape))
    random_bytes = random.Random(seed).randbytes(n_elements * max(spec.torch_dtype.itemsize, 1))
    if spec.dtype == "bool":
        random_bytes = bytes(byte & 1 for byte in random_bytes)
    bits = torch.tensor(list(random_bytes), dtype=torch.uint8)
    return (
        bits.view(spec.torch_dtype).reshape(shape)
        if n_elements
        else torch.empty(shape, dtype=spec.torch_dtype)
    )


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()) if tensor.numel() else b""


def as_strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps between them."""
    wide = torch.zeros((*tensor.shape, 3), dtype=tensor.dtype)
    wide[..., 1] = tensor
    return wide[..., 1]


@st.composite
def configs(draw: st.DrawFn) -> BatchConfig:
    shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
    specs = draw(
        st.lists(st.tuples(shapes, st.sampled_from(NUMPY_DTYPES + TORCH_DTYPES)), min_size=1, max_size=5)
    )
    return BatchConfig([TensorSpec(f"t{i}", shape, dtype) for i, (shape, dtype) in enumerate(specs)])


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


def test_a_number_is_not_spread_over_a_shape() -> None:
    with pytest.raises(ConfigError, match=r"Shape mismatch: \(\) != \(2, 3\), expected by tensor \"x\""):
        XY.encode_into({"x": 1.0, "y": 1}, bytearray(32))
    with pytest.raises(ConfigError, match=r"Shape mismatch: \(\) != \(1,\), expected by tensor \"y\""):
        XY.encode_batch_into({**xy(1, 1), "y": 1}, [bytearray(32)])


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
    """A tensor that says that it is on a device."""

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
