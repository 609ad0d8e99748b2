"""Functions that make samples, and how what they make gets into slots."""

import array
import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from softs_fast import BatchConfig, ConfigError, TensorSpec
from softs_fast.errors import GeneratorFailed
from softs_fast.market.generators import Generator, make_generator

XY = BatchConfig([TensorSpec("x", (2, 3), "float32"), TensorSpec("y", (), "int64")])


def slots_of(n: int, slot_size: int) -> list[memoryview]:
    """Slots that lie end to end, as in a segment."""
    memory = memoryview(bytearray(b"\xee") * (n * slot_size))
    return [memory[i * slot_size : (i + 1) * slot_size] for i in range(n)]


def make(generator: Generator, n: int = 1, slot_size: int = 4, first: int = 7) -> list[bytes]:
    """Let a generator make n samples of product "p" with the sequence numbers from `first` on."""
    slots = slots_of(n, slot_size)
    generator.make("p", tuple(range(first, first + n)), slots)
    return [bytes(slot) for slot in slots]


def failure(generator: Generator, n: int = 1, slot_size: int = 4) -> str:
    with pytest.raises(GeneratorFailed) as caught:
        make(generator, n, slot_size)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


def xy(number: float, n: int | None = None) -> dict[str, torch.Tensor]:
    rows = () if n is None else (n,)
    return {"x": torch.full((*rows, 2, 3), float(number)), "y": torch.full(rows, int(number))}


def test_bytes() -> None:
    generator = make_generator(lambda product_id: product_id.encode() * 4, slot_size=4)
    assert generator.is_plain
    assert not generator.wants_sequence
    assert generator.max_batch == 1
    assert generator.function("ab") == b"abababab"
    assert make(generator, 2) == [b"pppp", b"pppp"]


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        memoryview(b"aXbXcXdX")[::2],
        memoryview(b"abcd").cast("i"),
        memoryview(b"abcd").cast("B", (2, 2)),
    ],
)
def test_bytes_of_other_kinds(data: Any) -> None:
    assert make(make_generator(lambda _: data, slot_size=4)) == [b"abcd"]
    assert make(make_generator(batch_generator_fn=lambda _, n: [data] * n, slot_size=4), 2) == [b"abcd"] * 2
    assert make(make_generator(batch_generator_fn=lambda _, n: data, slot_size=2), 2, 2) == [b"ab", b"cd"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abc", "returned 3 bytes, need slot_size=4"),
        (b"", "returned 0 bytes, need slot_size=4"),
        (memoryview(b""), "returned 0 bytes, need slot_size=4"),
        (memoryview(b"abcde"), "returned 5 bytes, need slot_size=4"),
        (None, "returned NoneType, need bytes"),
        ("abcd", "returned str, need bytes"),
        (array.array("B", b"abcd"), "returned array, need bytes"),
        ({"x": 1}, "returned dict, need bytes (tensors need batch_config)"),
    ],
)
def test_what_are_not_the_bytes_of_a_sample(data: Any, message: str) -> None:
    text = failure(make_generator(lambda _: data, slot_size=4))
    assert text == f"generator_fn for product 'p' made no sample: {message}"
    text = failure(make_generator(batch_generator_fn=lambda _, n: [b"good", data], slot_size=4), 2)
    assert text == f"batch_generator_fn for product 'p' made no sample: {message} (sample 1 of 2)"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([b"abcd"], "returned 1 samples, need 2"),
        ([b"abcd"] * 3, "returned 3 samples, need 2"),
        ((), "returned 0 samples, need 2"),
        (b"abcdefg", "returned 7 bytes, need 8 for 2 samples"),
        (iter([b"abcd", b"abcd"]), "returned list_iterator, need 2 byte strings, or bytes"),
        (None, "returned NoneType, need 2 byte strings, or bytes"),
        ({"x": 1}, "returned dict, need 2 byte strings, or bytes (tensors need batch_config)"),
    ],
)
def test_what_are_not_the_bytes_of_a_batch(data: Any, message: str) -> None:
    text = failure(make_generator(batch_generator_fn=lambda *_: data, slot_size=4), 2)
    assert text == f"batch_generator_fn for product 'p' made no sample: {message}"


def test_tensors() -> None:
    generator = make_generator(lambda _, sequence: xy(sequence), slot_size=32, batch_config=XY)
    assert not generator.is_plain
    assert make(generator, 2, 32) == [XY.encode(**xy(7)), XY.encode(**xy(8))]
    encoded = make_generator(lambda _: XY.encode(**xy(7)), slot_size=32, batch_config=XY)
    assert not encoded.is_plain
    assert make(encoded, 1, 32) == [XY.encode(**xy(7))]


def test_batches() -> None:
    sizes = []

    def generate(product_id: str, n: int, sequences: tuple[int, ...]) -> dict[str, Any]:
        sizes.append(n)
        return {"y": np.array(sequences), "x": torch.stack([xy(number)["x"] for number in sequences])}

    generator = make_generator(batch_generator_fn=generate, slot_size=32, batch_config=XY, max_batch=5)
    assert (generator.is_plain, generator.wants_sequence, generator.max_batch) == (False, True, 5)
    assert make(generator, 3, 32) == [XY.encode(**xy(number)) for number in (7, 8, 9)]
    assert make(generator, 1, 32) == [XY.encode(**xy(7))]
    assert sizes == [3, 1]
    encoded = [XY.encode(**xy(number)) for number in (7, 8)]
    for samples in (encoded, tuple(encoded), b"".join(encoded)):
        generator = make_generator(
            batch_generator_fn=lambda _, n, samples=samples: samples, slot_size=32, batch_config=XY
        )
        assert not generator.wants_sequence
        assert make(generator, 2, 32) == encoded


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x": xy(1)["x"]}, "Tensor mismatch: missing=['y'], extra=[]"),
        ({**xy(1), 3: 1, "z": 2}, "Tensor mismatch: missing=[], extra=[3, 'z']"),
        ({**xy(1), "x": torch.zeros(3, 2)}, 'Shape mismatch: (3, 2) != (2, 3), expected by tensor "x"'),
        ({**xy(1), "x": np.zeros((2, 3))}, 'Dtype mismatch: float64 != float32, expected by tensor "x"'),
        ({**xy(1), "y": 1.0}, 'tensor "y": float 1.0 is no value of int64'),
        (None, "returned NoneType, need a mapping of tensors, or bytes"),
        (b"abc", "returned 3 bytes, need slot_size=32"),
    ],
)
def test_what_are_not_the_tensors_of_a_sample(sample: Any, message: str) -> None:
    text = failure(make_generator(lambda _: sample, slot_size=32, batch_config=XY), 1, 32)
    assert text == f"generator_fn for product 'p' made no sample: {message}"


@pytest.mark.parametrize("staged_bytes", [-1, 16384])
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (xy(1, 3), 'Shape mismatch: (3, 2, 3) != (2, 2, 3), expected by tensor "x"'),
        (xy(1), 'Shape mismatch: (2, 3) != (2, 2, 3), expected by tensor "x"'),
        (
            {**xy(1, 2), "y": torch.ones(2)},
            'Dtype mismatch: torch.float32 != torch.int64, expected by tensor "y"',
        ),
        ({"x": 1}, "Tensor mismatch: missing=['y'], extra=[]"),
        ([xy(1), xy(2)], "returned dict, need bytes (tensors need batch_config) (sample 0 of 2)"),
        (None, "returned NoneType, need a mapping of tensors, 2 byte strings, or bytes"),
    ],
)
def test_what_are_not_the_tensors_of_a_batch(
    batch: Any, message: str, staged_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softs_fast.configs.batch._STAGED_BYTES", staged_bytes)
    generator = make_generator(batch_generator_fn=lambda _, n: batch, slot_size=32, batch_config=XY)
    assert failure(generator, 2, 32) == f"batch_generator_fn for product 'p' made no sample: {message}"


def test_in_place_as_bytes() -> None:
    def fill(product_id: str, out: memoryview) -> None:
        assert not out.readonly
        out[:] = product_id.encode() * len(out)

    generator = make_generator(fill_fn=fill, slot_size=4)
    assert (generator.is_plain, generator.wants_sequence, generator.max_batch) == (False, False, 1)
    assert make(generator, 2) == [b"pppp"] * 2
    numbered = make_generator(fill_fn=lambda _, out, sequence: out.__setitem__(0, sequence), slot_size=1)
    assert numbered.wants_sequence
    assert make(numbered, 2, 1) == [b"\7", b"\10"]


def test_in_place_as_tensors() -> None:
    config = BatchConfig([*XY.specs, TensorSpec("h", (2,), "bfloat16"), TensorSpec("f", (4,), "float8_e5m2")])

    def fill(product_id: str, out: dict[str, Any], sequence: int) -> dict[str, Any]:
        out["x"][...] = sequence
        out["x"] += 1  # puts the same array back into the dict
        torch.from_numpy(out["y"]).fill_(sequence)
        out["h"].fill_(sequence / 2)
        out["f"][:] = 0.5
        return out

    generator = make_generator(fill_fn=fill, slot_size=40, batch_config=config)
    first, second = map(config.decode, make(generator, 2, 40))
    assert first["x"].eq(8).all()
    assert second["x"].eq(9).all()
    assert [first["y"].item(), second["y"].item()] == [7, 8]
    assert second["h"].tolist() == [4, 4]
    assert first["f"].tolist() == [0.5] * 4


@pytest.mark.parametrize(
    ("fill", "names"),
    [
        (lambda _, out: out.update(x=out["x"] * 2), "['x']"),
        (lambda _, out: out.update(z=None), "['z']"),
        (lambda _, out: out.update(y=None), "['y']"),
        (lambda _, out: out.clear(), "['x', 'y']"),
    ],
)
def test_what_is_not_written_in_place_is_noticed(fill: Callable[..., None], names: str) -> None:
    text = failure(make_generator(fill_fn=fill, slot_size=32, batch_config=XY), 1, 32)
    assert text == (
        "fill_fn for product 'p' made no sample: "
        f"replaced, added or removed {names} in out, need them written to: out[name][...] = value"
    )


def test_a_layout_that_cannot_be_shown() -> None:
    config = BatchConfig([TensorSpec("flag", (), "bool"), TensorSpec("x", (1,), "bfloat16")])
    text = failure(make_generator(fill_fn=lambda _, out: None, slot_size=3, batch_config=config), 1, 3)
    assert text.startswith(
        "fill_fn for product 'p' made no sample: tensor \"x\" (bfloat16) would be unaligned"
    )


@pytest.mark.parametrize("kind", ["generator_fn", "batch_generator_fn", "fill_fn"])
@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), ConfigError("of the user"), GeneratorFailed("x"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("config", [None, XY])
def test_what_the_function_raises_passes(kind: str, error: BaseException, config: BatchConfig | None) -> None:
    def fail(*args: object) -> Any:
        raise error

    generator = make_generator(**{kind: fail}, slot_size=32, batch_config=config)  # type: ignore[arg-type]
    with pytest.raises(type(error)) as caught:
        make(generator, 2, 32)
    assert caught.value is error


def test_no_slot_is_kept() -> None:
    memory = bytearray(64)
    slots = [memoryview(memory)[:32], memoryview(memory)[32:]]
    generators = [
        make_generator(lambda _: xy(1), slot_size=32, batch_config=XY),
        make_generator(batch_generator_fn=lambda _, n: xy(1, n), slot_size=32, batch_config=XY),
        make_generator(fill_fn=lambda _, out: out["x"].fill(1), slot_size=32, batch_config=XY),
        make_generator(fill_fn=lambda _, out: None, slot_size=32),
    ]
    for generator in generators:
        generator.make("p", (0, 1), slots)
    for slot in slots:
        slot.release()
    memory.clear()  # a BufferError if anything still refers to it


class Callables:
    def method(self, product_id: str) -> bytes:
        return product_id.encode()

    def numbered(self, product_id: str, sequence: int) -> bytes:
        return bytes([sequence])

    def __call__(self, product_id: str, number: int) -> bytes:
        return bytes([number])


def undocumented(product_id: str) -> bytes:
    return b"u"


undocumented.__signature__ = "nonsense"  # type: ignore[attr-defined]


def wrapped(product_id: str, number: int) -> bytes:
    return bytes([number])


@functools.wraps(wrapped)
def wrapper(*args: Any) -> bytes:
    return wrapped(*args)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda product_id: b"1", b"1"),
        (lambda product_id, number: bytes([number]), b"\7"),
        (lambda product_id, sequence=0: bytes([sequence]), b"\7"),
        (lambda product_id, sequences=0: bytes([sequences]), b"\7"),
        (lambda product_id, model=b"m": model, b"m"),
        (lambda *args: bytes([len(args)]), b"\1"),
        (lambda product_id, *rest: bytes([len(rest)]), b"\0"),
        (lambda product_id, *, sequence=b"k": sequence, b"k"),
        (lambda product_id, **rest: bytes([len(rest)]), b"\0"),
        (functools.partial(lambda model, product_id: model, b"m"), b"m"),
        (functools.partial(lambda product_id, model: model, model=b"m"), b"m"),
        (functools.partial(lambda model, product_id, number: bytes([number]), b"m"), b"\7"),
        (Callables().method, b"p"),
        (Callables().numbered, b"\7"),
        (Callables(), b"\7"),
        (wrapper, b"\7"),
        (undocumented, b"u"),
    ],
)
def test_which_functions_get_the_sequence(function: Callable[..., bytes], expected: bytes) -> None:
    assert make(make_generator(function, slot_size=1), 1, 1) == [expected]


def test_which_functions_get_the_sequence_in_other_forms() -> None:
    for function, wants in [
        (lambda a, b: None, False),
        (lambda a, b, c: None, True),
        (lambda a, b, sequences=(): None, True),
        (lambda a, b, other=(): None, False),
        (lambda *args: None, False),
    ]:
        assert make_generator(batch_generator_fn=function, slot_size=1).wants_sequence == wants
        assert make_generator(fill_fn=function, slot_size=1).wants_sequence == wants


def test_arguments_of_make_generator() -> None:
    def function(*args: object) -> Any: ...

    with pytest.raises(ConfigError, match=r"need exactly one of generator_fn, .*, fill_fn; have none"):
        make_generator(slot_size=4)
    with pytest.raises(ConfigError, match="have generator_fn, fill_fn"):
        make_generator(function, fill_fn=function, slot_size=4)
    with pytest.raises(ConfigError, match="batch_config has 32 bytes per sample, need slot_size=4"):
        make_generator(function, slot_size=4, batch_config=XY)
    with pytest.raises(ConfigError, match="max_batch must be at least 1, have 0"):
        make_generator(batch_generator_fn=function, slot_size=4, max_batch=0)


def test_a_config_that_encodes_otherwise_is_refused() -> None:
    class Halved(BatchConfig):
        def encode(self, **tensors: torch.Tensor) -> bytes:
            return super().encode(**tensors)[::-1]

    with pytest.raises(ConfigError, match="batch_config of type Halved has an encode of its own"):
        make_generator(lambda _: {}, slot_size=32, batch_config=Halved(XY.specs))


def test_torch_is_imported_only_for_what_needs_it() -> None:
    program = """
import sys
import numpy as np
from softs_fast import BatchConfig, TensorSpec
from softs_fast.market.generators import make_generator
config = BatchConfig([TensorSpec("x", (2,), "float32"), TensorSpec("y", (), "int64")])
slot = memoryview(bytearray(16))
x = np.ones(2, np.float32)
make_generator(lambda p: {"x": x, "y": 3}, slot_size=16, batch_config=config).make("p", (0,), [slot])
make_generator(
    batch_generator_fn=lambda p, n: {"x": x[None], "y": np.zeros(1, int)}, slot_size=16, batch_config=config
).make("p", (0,), [slot])
make_generator(
    fill_fn=lambda p, out: out["y"].fill(4), slot_size=16, batch_config=config
).make("p", (0,), [slot])
assert "torch" not in sys.modules
assert bytes(slot) == x.tobytes() + (4).to_bytes(8, "little")
half = BatchConfig([TensorSpec("x", (), "bfloat16")])
half.encode_into({"x": 1.0}, memoryview(bytearray(2)))
assert "torch" in sys.modules
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
