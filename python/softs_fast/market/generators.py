"""Generators: the user's functions in one form, which makes the samples of some orders in their slots.

Pure Python without threads, sockets or memory of its own: the caller passes the slots.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

from ..configs import BatchConfig, RaggedLayout
from ..errors import ConfigError, GeneratorFailed, WireError

__all__ = [
    "BatchGenerator",
    "FillGenerator",
    "Generator",
    "Output",
    "SampleGenerator",
    "SlotOutput",
    "flat_bytes",
    "make_generator",
    "rows_of_bytes",
    "takes_argument",
]


class Output(Protocol):
    """Stores results of the user's functions in slots.

    Attributes:
        is_bytes: whether it takes only bytes and copies them to the memory of the slots, so that a caller may copy them
            itself.
    """

    @property
    def is_bytes(self) -> bool: ...

    def put(self, sample: object, slot: memoryview) -> None:
        """Store one sample in a slot. Raises ConfigError if it is not one."""

    def put_all(self, samples: object, slots: Sequence[memoryview]) -> None:
        """Store a batch with one sample per slot in the slots. Raises ConfigError if it is not one."""

    def lend(self, slot: memoryview) -> Any:
        """Return the memory, or the dict of tensors, that a function fills with one sample.

        Raises ConfigError if the slot has no such views.
        """

    def take_back(self, slot: memoryview) -> None:
        """Finish the slot that was lent last, after the function has filled it."""


class SlotOutput:
    """An `Output` that stores samples in the memory of the slots.

    Args:
        config: layout of a sample; None if functions return bytes.
    """

    def __init__(self, config: BatchConfig | None = None) -> None:
        self.is_bytes = config is None
        self._config = config

    def put(self, sample: object, slot: memoryview) -> None:
        """See `Output.put`."""
        config = self._config
        if config is not None and isinstance(sample, Mapping):
            config.encode_into(sample, slot)
            return
        data = flat_bytes(sample, "bytes" if config is None else "a mapping of tensors, or bytes")
        if config is not None and config.ragged is not None:
            _store_ragged(config.ragged, data, slot)
            return
        if len(data) != len(slot):
            raise ConfigError(f"returned {len(data)} bytes, need slot_size={len(slot)}")
        slot[:] = data

    def put_all(self, samples: object, slots: Sequence[memoryview]) -> None:
        """See `Output.put_all`."""
        config = self._config
        if config is not None and isinstance(samples, Mapping):
            config.encode_batch_into(samples, slots)
            return
        if config is not None and config.ragged is not None:
            self._put_each(samples, slots)
            return
        rows = rows_of_bytes(samples, list(map(len, slots)), with_config=config is not None)
        for row, slot in zip(rows, slots, strict=True):
            slot[:] = row

    def _put_each(self, samples: object, slots: Sequence[memoryview]) -> None:
        """Store samples that differ in their number of bytes."""
        n = len(slots)
        if not isinstance(samples, list | tuple):
            kind = type(samples).__name__
            raise ConfigError(f"returned {kind}, need a mapping of tensors, or a list of {n} byte strings")
        if len(samples) != n:
            raise ConfigError(f"returned {len(samples)} samples, need {n}")
        for i, (sample, slot) in enumerate(zip(samples, slots, strict=True)):
            try:
                self.put(flat_bytes(sample, "bytes"), slot)
            except ConfigError as error:
                raise ConfigError(f"{error} (sample {i} of {n})") from None

    def lend(self, slot: memoryview) -> Any:
        """See `Output.lend`."""
        return slot if self._config is None else self._config.views(slot)

    def take_back(self, slot: memoryview) -> None:
        """Do nothing: the function has written to the slot."""


class Generator(ABC):
    """Makes samples in slots.

    Args:
        function: The user's function.
        output: Output that takes the samples.

    Attributes:
        wants_sequence: whether `function` takes the sequence number, or numbers, as its last argument.
        max_batch: samples that one call of `function` can make; `make` takes at most as many.
        is_plain: whether `function` takes one product and returns the bytes of one sample, so that a caller
            that checks their number needs no `make`.
        batch_function: `function`, if it returns the bytes of many samples, so that a caller that checks their
            number and sizes needs no `make`; other results go to `BatchGenerator.store`.
    """

    max_batch = 1
    is_plain = False
    batch_function: Callable[..., Any] | None = None
    #: Positional arguments that the function has without the number.
    _n_arguments = 2

    def __init__(self, function: Callable[..., Any], output: Output) -> None:
        self.function = function
        self.wants_sequence = takes_argument(function, self._n_arguments, "sequence", "sequences")
        self._output = output

    @abstractmethod
    def make(self, product_id: str, sequences: tuple[int, ...], slots: Sequence[memoryview]) -> None:
        """Make one sample per slot; on an error, the contents of all slots are undefined.

        The generator keeps no reference to a slot; the user's function may.

        Args:
            product_id: the product to make.
            sequences: the number of each sample in its stream.
            slots: writable bytes of each sample, contiguous, as many as there are sequences.

        Raises:
            GeneratorFailed: the function did not make samples; the text names the product, the result and what is
                needed.
            Exception: an exception of the function, unchanged.
        """


class SampleGenerator(Generator):
    """`function(product_id)`, or `function(product_id, sequence)`, returns one sample.

    Args:
        function: Function that returns bytes, bytearray or memoryview of the slot's size; with a config also a
            mapping {name: dtype [*shape]} of tensors, arrays or numbers, see `BatchConfig.encode_into`. Where tensors
            are ragged, the bytes are those of `BatchConfig.encode`.
        output: Output that puts samples into slots.
    """

    _n_arguments = 1

    def __init__(self, function: Callable[..., Any], output: Output) -> None:
        super().__init__(function, output)
        self.is_plain = output.is_bytes

    def make(self, product_id: str, sequences: tuple[int, ...], slots: Sequence[memoryview]) -> None:
        """Make one sample per slot, with a call for each; see `Generator.make`."""
        for sequence, slot in zip(sequences, slots, strict=True):
            sample = self.function(product_id, *((sequence,) if self.wants_sequence else ()))
            try:
                self._output.put(sample, slot)
            except ConfigError as error:
                raise _failed("generator_fn", product_id, error) from None


class BatchGenerator(Generator):
    """`function(product_id, n)`, or `function(product_id, n, sequences)`, returns n samples.

    Args:
        function: Function that returns a list or tuple of n samples as bytes, bytearray or memoryview, or one of
            these with all n end to end; with a config also a mapping {name: dtype [n, *shape]} of tensors or arrays,
            see `BatchConfig.encode_batch_into`. Where tensors are ragged, byte strings are those of
            `BatchConfig.encode`, in a list. `sequences` is a tuple of n numbers.
        max_batch: The largest n, at least 1.
        output: Output that puts samples into slots.
    """

    def __init__(self, function: Callable[..., Any], max_batch: int, output: Output) -> None:
        super().__init__(function, output)
        self.max_batch = max_batch
        self.batch_function = function if output.is_bytes else None

    def make(self, product_id: str, sequences: tuple[int, ...], slots: Sequence[memoryview]) -> None:
        """Make all samples with one call; see `Generator.make`."""
        n = len(slots)
        numbers = (sequences,) if self.wants_sequence else ()
        self.store(product_id, self.function(product_id, n, *numbers), slots)

    def store(self, product_id: str, samples: object, slots: Sequence[memoryview]) -> None:
        """Copy what the function returned into the slots.

        Raises:
            GeneratorFailed: it is not what is needed.
        """
        try:
            self._output.put_all(samples, slots)
        except ConfigError as error:
            raise _failed("batch_generator_fn", product_id, error) from None


class FillGenerator(Generator):
    """`function(product_id, out)`, or `function(product_id, out, sequence)`, makes one sample in place.

    Args:
        function: Function that writes the whole sample into `out`, the slot's bytes; with a config into {name: dtype
            [*shape]} on the slot's memory, see `BatchConfig.views`. Its return value is ignored. `out` contains the
            slot's previous sample. It must not be used after the call: the slot is the client's again.
        output: Output that lends the memory of slots.
    """

    def make(self, product_id: str, sequences: tuple[int, ...], slots: Sequence[memoryview]) -> None:
        """Make one sample per slot, with a call for each; see `Generator.make`."""
        for sequence, slot in zip(sequences, slots, strict=True):
            try:
                lent = self._output.lend(slot)
            except ConfigError as error:
                raise _failed("fill_fn", product_id, error) from None
            # The function may change its dict; a copy shows what was changed.
            out = dict(lent) if isinstance(lent, dict) else lent
            self.function(product_id, out, *((sequence,) if self.wants_sequence else ()))
            if isinstance(lent, dict):
                _check_in_place(product_id, lent, out)
            self._output.take_back(slot)


def make_generator(
    generator_fn: Callable[..., Any] | None = None,
    *,
    batch_generator_fn: Callable[..., Any] | None = None,
    fill_fn: Callable[..., Any] | None = None,
    slot_size: int,
    batch_config: BatchConfig | None = None,
    max_batch: int = 64,
    output: Output | None = None,
) -> Generator:
    """Return the generator for the one function that is given.

    A function gets the sequence number, or numbers, if it has one more positional parameter than the form
    without them, and that one either has no default or is called `sequence` or `sequences`. Another parameter with a
    default, as in `lambda product_id, model=model: ...`, keeps its default.

    Args:
        generator_fn: Function that makes one sample, see `SampleGenerator`.
        batch_generator_fn: Function that makes n samples, see `BatchGenerator`.
        fill_fn: Function that makes one sample in place, see `FillGenerator`.
        slot_size: Bytes of one sample.
        batch_config: Layout of a sample of `slot_size` bytes; None if functions return bytes.
        max_batch: The largest n for `batch_generator_fn`.
        output: Output that takes the samples; default: one that writes into the memory of the slots.

    Raises:
        ConfigError: not exactly one function; a config of another size, one with an `encode` of its own, or one with
            a codec or a ragged tensor for `fill_fn`; max_batch is less than 1.
    """
    functions = {"generator_fn": generator_fn, "batch_generator_fn": batch_generator_fn, "fill_fn": fill_fn}
    given = [name for name, function in functions.items() if function is not None]
    if len(given) != 1:
        raise ConfigError(f"need exactly one of {', '.join(functions)}; have {', '.join(given) or 'none'}")
    if max_batch < 1:
        raise ConfigError(f"max_batch must be at least 1, have {max_batch}")
    if batch_config is not None:
        _check_config(batch_config, slot_size)
    output = SlotOutput(batch_config) if output is None else output
    if batch_generator_fn is not None:
        return BatchGenerator(batch_generator_fn, max_batch, output)
    if fill_fn is not None:
        for spec in batch_config.specs if batch_config else ():
            if spec.codec is not None:
                raise ConfigError(
                    f'fill_fn fills tensors in place, but "{spec.name}" is stored as {spec.codec}; use generator_fn '
                    "or batch_generator_fn, or no codec"
                )
            if spec.ragged:
                raise ConfigError(
                    f'fill_fn fills tensors in place, but "{spec.name}" is ragged; use generator_fn or batch_generator_fn'
                )
        return FillGenerator(fill_fn, output)
    assert generator_fn is not None
    return SampleGenerator(generator_fn, output)


def flat_bytes(data: object, need: str) -> bytes | bytearray | memoryview:
    """Return data as contiguous bytes, copied only if it is not contiguous.

    Raises:
        ConfigError: it is no bytes; the text names what is needed.
    """
    if isinstance(data, bytes | bytearray):
        return data
    if isinstance(data, memoryview):
        # An empty view cannot be cast.
        return data.cast("B") if data.c_contiguous and data.nbytes else data.tobytes()
    hint = " (tensors need batch_config)" if isinstance(data, Mapping) and "mapping" not in need else ""
    raise ConfigError(f"returned {type(data).__name__}, need {need}{hint}")


def rows_of_bytes(
    samples: object, sizes: Sequence[int], *, with_config: bool
) -> list[bytes | bytearray | memoryview]:
    """Return the bytes of each sample of a batch.

    Args:
        samples: a list or tuple of them, or all end to end.
        sizes: bytes of each sample.
        with_config: whether tensors are accepted too, for the text of errors.

    Raises:
        ConfigError: it is of another type, or has more or fewer bytes.
    """
    n = len(sizes)
    if isinstance(samples, list | tuple):
        if len(samples) != n:
            raise ConfigError(f"returned {len(samples)} samples, need {n}")
        rows = []
        for i, (sample, size) in enumerate(zip(samples, sizes, strict=True)):
            try:
                rows.append(flat_bytes(sample, "bytes"))
                if len(rows[-1]) != size:
                    raise ConfigError(f"returned {len(rows[-1])} bytes, need slot_size={size}")
            except ConfigError as error:
                raise ConfigError(f"{error} (sample {i} of {n})") from None
        return rows
    need = f"{n} byte strings, or bytes"
    data = memoryview(flat_bytes(samples, f"a mapping of tensors, {need}" if with_config else need))
    if len(data) != sum(sizes):
        raise ConfigError(f"returned {len(data)} bytes, need {sum(sizes)} for {n} samples")
    return [data[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]


def takes_argument(function: Callable[..., Any], n_before: int, *names: str) -> bool:
    """Return whether a function takes an optional argument after its first `n_before` positional ones.

    It does if there is one more parameter that has no default or has one of `names`.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins, for instance
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) <= n_before:
        return False
    parameter = positional[n_before]
    return parameter.default is parameter.empty or parameter.name in names


def _check_config(config: BatchConfig, slot_size: int) -> None:
    if config.nbytes() != slot_size:
        raise ConfigError(f"batch_config has {config.nbytes()} bytes per sample, need slot_size={slot_size}")
    if getattr(config.encode, "__func__", None) is not BatchConfig.encode:
        raise ConfigError(
            f"batch_config of type {type(config).__name__} has an encode of its own, which is not used to "
            "write into slots; give no batch_config and return the bytes of encode from generator_fn"
        )


def _store_ragged(ragged: RaggedLayout, data: bytes | bytearray | memoryview, slot: memoryview) -> None:
    """Copy an encoded sample into a slot, as many bytes as it has.

    Raises:
        ConfigError: it is none.
    """
    try:
        end = ragged.bytes_of(ragged.checked_lengths(data))
    except WireError as error:
        raise ConfigError(f"returned {len(data)} bytes that are no sample: {error}") from None
    slot[:end] = memoryview(data)[:end]


def _check_in_place(product_id: str, given: Mapping[str, Any], out: Mapping[str, Any]) -> None:
    """Check that a function has filled the tensors on the slot instead of replacing them."""
    changed = [str(key) for key in {**given, **out} if key not in given or out.get(key) is not given[key]]
    if changed:
        error = f"replaced, added or removed {changed} in out, need them written to: out[name][...] = value"
        raise _failed("fill_fn", product_id, error)


def _failed(kind: str, product_id: str, error: object) -> GeneratorFailed:
    return GeneratorFailed(f"{kind} for product {product_id!r} made no sample: {error}")
