"""What one sample is made of: named tensors of fixed shape and dtype, laid end to end without padding.

Sizes and offsets need no torch, so a broker or a relay can use this module without it; torch is imported when
a tensor is encoded or decoded as such, or asked for its dtype. Arrays are written into slots without it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ._dtypes import ITEM_BYTES, STAND_INS, checked_value, copy_into, import_numpy, on_host, torch_dtype
from ._dtypes import import_torch as import_torch  # for the rooms above this one
from .codecs import Codec, as_codec
from .codecs.encodings import decode, encode, parts_of
from .codecs.parts import Field, Part
from .errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    Buffer = bytes | bytearray | memoryview

__all__ = ["BatchConfig", "TensorSpec", "dtype_to_torch", "make_xy_config", "torch_dtype_to_str"]


def dtype_to_torch(dtype_str: str) -> torch.dtype:
    """Return the torch dtype of a name such as `"float32"`.

    Raises:
        ConfigError: the name is not a supported dtype; see `TensorSpec`.
        ImportError: torch is not installed.
    """
    _check_dtype(dtype_str)
    return torch_dtype(dtype_str)


def torch_dtype_to_str(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype, the inverse of `dtype_to_torch`.

    Raises:
        ConfigError: the dtype is not a supported one.
        ImportError: torch is not installed.
    """
    torch = import_torch()
    for name in ITEM_BYTES:
        if getattr(torch, name) is dtype:
            return name
    raise ConfigError(f"Unsupported torch dtype: {dtype}; supported are {', '.join(ITEM_BYTES)}")


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of a sample.

    Args:
        name: key of the tensor in `BatchConfig.encode` and `BatchConfig.decode`.
        shape: sizes without a batch dimension; any sequence of whole numbers, kept as a tuple.
        dtype: one of float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, int16,
            int8, uint8, bool.
        codec: how the tensor is encoded in a sample: a text such as "topk:64", or a codec of `softs_fast.codecs`,
            kept as its text. None, or "exact": its elements are stored as they are.

    Raises:
        ConfigError: an empty name, a dimension that is negative or not a whole number, an unknown dtype or codec, or a
            codec that does not take such a tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    # Of any type, as OmegaConf, which makes dicts of dataclasses, takes no unions.
    codec: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields, turn a list of sizes (YAML, Hydra) into a tuple, and a codec into its text."""
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"tensor name must be a non-empty string, got {self.name!r}")
        object.__setattr__(self, "shape", _checked_shape(self.name, self.shape))
        _check_dtype(self.dtype, f'tensor "{self.name}": ')
        codec = as_codec(self.codec)
        object.__setattr__(self, "codec", None if codec is None else str(codec))
        self._parts()

    def __repr__(self) -> str:
        """Return the call that makes it; the codec only if there is one."""
        codec = "" if self.codec is None else f", codec={self.codec!r}"
        return f"TensorSpec(name={self.name!r}, shape={self.shape!r}, dtype={self.dtype!r}{codec})"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch knows it."""
        return dtype_to_torch(self.dtype)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the encoded tensor in bytes."""
        if self.codec is None:
            return self.numel * ITEM_BYTES[self.dtype]
        return sum(part.n_bytes for part in self._parts())

    def encode(self, tensor: Tensor) -> bytes:
        """Return the elements of `tensor` in row-major order, native endian, encoded if there is a codec.

        Args:
            tensor: self.dtype [*self.shape], or what the codec takes instead; any strides; one on a device is copied
                to the host first.

        Raises:
            ConfigError: another shape or dtype, or a value that the codec cannot hold.
            ImportError: torch is not installed.
        """
        if self.codec is not None:
            data = bytearray(self.nbytes)
            self._encode_into(tensor, (), [memoryview(data)], 0)
            return bytes(data)
        return self._host_array(tensor).tobytes()

    def decode(self, data: Buffer) -> Any:
        """Return a new, writable tensor, self.dtype [*self.shape], that shares no memory with `data`.

        With the codec TopK, it is `TopKLogits`.

        Raises:
            ConfigError: `data` is not exactly `nbytes` long.
            WireError: `data` is not what the codec writes.
            ImportError: torch is not installed.
        """
        check_length(data, self.nbytes)
        return self._tensor_at(data, 0)

    def _host_array(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return an array over the tensor's memory, or over a copy of it if that is not on the host."""
        import_torch()
        return on_host(self._checked(tensor))

    def _checked(self, value: object, *, rows: tuple[int, ...] = ()) -> np.ndarray[Any, Any] | Tensor:
        """Return the bits of a value that has this dtype and the shape [*rows, *self.shape]."""
        return checked_value(self.name, self.dtype, (*rows, *self.shape), value)

    def _tensor_at(self, data: Buffer, offset: int) -> Any:
        """Copy this tensor out of `data`, from byte `offset` on: one copy, aligned whatever the offset is."""
        if self.codec is not None:
            return decode(self._coder, self._field, [data], offset, ())
        return tensor_over(self.dtype, _array_at(self, data, offset).copy())

    def _assemble(self, tensors: Sequence[Tensor]) -> Any:
        """Return what a batch has of this tensor, given its `_parts`."""
        return tensors[0] if self.codec is None else self._coder.assemble(tensors)

    def _encode_into(
        self, value: Any, rows: tuple[int, ...], outs: Sequence[memoryview], offset: int
    ) -> None:
        """Write what each sample has of this tensor; see `codecs.encodings.encode`."""
        encode(self._coder, self._field, value, rows, outs, offset)

    @property
    def _coder(self) -> Codec:
        """The codec, where there is one."""
        codec = as_codec(self.codec)
        assert codec is not None
        return codec

    @property
    def _field(self) -> Field:
        return Field(self.name, self.shape, self.dtype)

    def _parts(self) -> tuple[Part, ...]:
        """Return the tensors that this one becomes in a batch: itself, or those of its codec."""
        if self.codec is None:
            return (Part(0, self.shape, self.dtype, None),)
        return parts_of(self._coder, self._field)


@dataclass
class BatchConfig:
    """The tensors of one sample, in order.

    Args:
        specs: `TensorSpec`s, or mappings with the keys name, shape, dtype and, if need be, codec (keys that start
            with `_`, such as Hydra's `_target_`, are ignored). `specs` is a list of `TensorSpec` afterwards.

    Raises:
        ConfigError: two tensors have one name, or a spec is invalid.
        TypeError: a spec is neither a TensorSpec nor a mapping, or a mapping lacks a key or has an unknown
            one.

    Example:
        >>> config = BatchConfig([TensorSpec("x", (3, 2), "float32"), TensorSpec("y", (), "int64")])
        >>> config.nbytes(), config.get_offset("y")
        (32, 24)
    """

    specs: list[TensorSpec]

    def __post_init__(self) -> None:
        """Convert mappings to specs and lay the tensors out."""
        self.specs = [_to_spec(spec) for spec in self.specs]
        names = self.tensor_names
        if len(names) != len(set(names)):
            raise ConfigError(f"Duplicate tensor names: {names}")
        self._layout: dict[str, tuple[TensorSpec, int]] = {}
        offset = 0
        for spec in self.specs:
            self._layout[spec.name] = (spec, offset)
            offset += spec.nbytes
        self._nbytes = offset
        self._has_codecs = any(spec.codec is not None for spec in self.specs)

    @property
    def tensor_names(self) -> list[str]:
        """Names in the order in which the tensors are laid out."""
        return [spec.name for spec in self.specs]

    @property
    def has_codecs(self) -> bool:
        """Whether a tensor is stored in another way than it is decoded to."""
        return self._has_codecs

    def nbytes(self) -> int:
        """Return the size of one encoded sample in bytes."""
        return self._nbytes

    def get_spec(self, name: str) -> TensorSpec:
        """Return the spec of a tensor.

        Raises:
            KeyError: no tensor has this name.
        """
        return self._find(name)[0]

    def get_offset(self, name: str) -> int:
        """Return where a tensor starts within a sample, in bytes.

        Raises:
            KeyError: no tensor has this name.
        """
        return self._find(name)[1]

    def encode(self, **tensors: Tensor) -> bytes:
        """Return one sample: all tensors end to end, each copied once.

        Args:
            **tensors: one tensor per spec, by name, with the spec's dtype and shape; see `TensorSpec.encode`.

        Raises:
            ConfigError: a tensor is missing, extra, or has another shape or dtype, or its codec cannot hold it.
            ImportError: torch is not installed.
        """
        self._check_names(tensors)
        if self._has_codecs:
            data = bytearray(self._nbytes)
            if data:
                self.encode_into(tensors, data)
            return bytes(data)
        contiguous = import_numpy().ascontiguousarray
        return b"".join([contiguous(spec._host_array(tensors[spec.name])).data for spec in self.specs])

    def encode_into(self, sample: Mapping[str, Any], out: Any) -> None:
        """Write one sample to where it is wanted, one copy per tensor; on an error, part of it may be written.

        Args:
            sample: {name: dtype [*shape]}, each a numpy array, a torch tensor on any device or, for the shape
                (), a number; any strides. Nothing is cast, except by a codec.
            out: `nbytes()` writable bytes, contiguous, at any address.

        Raises:
            ConfigError: a tensor is missing, extra, or has another shape or dtype, or its codec cannot hold it; `out`
                is read-only or has another length.
            ImportError: a number for bfloat16 or float8, and torch is not installed.
        """
        self._check_names(sample)
        memory = self._writable(out)
        for name, (spec, offset) in self._layout.items():
            if spec.codec is None:
                copy_into(_array_at(spec, memory, offset), spec._checked(sample[name]))
            else:
                spec._encode_into(sample[name], (), [memory], offset)

    def encode_batch_into(self, batch: Mapping[str, Any], outs: Sequence[Any]) -> None:
        """Write `len(outs)` samples to where each is wanted; on an error, part of them may be written.

        Args:
            batch: {name: dtype [len(outs), *shape]}, each a numpy array or a torch tensor as for
                `encode_into`.
            outs: for each sample, what `encode_into` takes.

        Raises:
            ConfigError, ImportError: as for `encode_into`.
        """
        self._check_names(batch)
        memories = [self._writable(out) for out in outs]
        n, n_bytes = len(memories), self._nbytes
        plain = {name: at for name, at in self._layout.items() if at[0].codec is None}
        values = {name: spec._checked(batch[name], rows=(n,)) for name, (spec, _) in plain.items()}
        if n_bytes > _STAGED_BYTES:
            for i, memory in enumerate(memories):
                for name, (spec, offset) in plain.items():
                    copy_into(_array_at(spec, memory, offset), values[name][i, ...])
        elif plain:
            # A call of numpy costs more than copying a small tensor, so there is one for all rows.
            np = import_numpy()
            staged = np.empty((n, n_bytes), np.uint8)
            for name, (spec, offset) in plain.items():
                if spec.nbytes and n:
                    column = staged[:, offset : offset + spec.nbytes].view(array_dtype(spec.dtype))
                    np.copyto(column.reshape(n, *spec.shape), on_host(values[name]))
            staged_bytes = staged.reshape(-1).data
            for i, memory in enumerate(memories):
                memory[:] = staged_bytes[i * n_bytes : (i + 1) * n_bytes]
        for name, (spec, offset) in self._layout.items():
            if spec.codec is not None:
                spec._encode_into(batch[name], (n,), memories, offset)

    def views(self, out: Any) -> dict[str, Any]:
        """Return the tensors of one sample on the memory of `out`, to be filled in place; no copy.

        Args:
            out: as for `encode_into`.

        Returns:
            {name: dtype [*shape]}: numpy arrays, and torch tensors for bfloat16 and float8, which numpy
            lacks. They keep `out` alive. Tensors are laid out without padding, so an array may be unaligned:
            numpy works with such arrays, if slower.

        Raises:
            ConfigError: `out` is read-only or has another length; a bfloat16 tensor would be unaligned, which
                torch does not support; a tensor has a codec, so there is nothing in the sample to be shown.
            ImportError: there is a bfloat16 or float8 tensor, and torch is not installed.
        """
        memory = self._writable(out)
        views: dict[str, Any] = {}
        for name, (spec, offset) in self._layout.items():
            if spec.codec is not None:
                raise ConfigError(
                    f'tensor "{name}" is stored as {spec.codec}, so it cannot be filled in place; use a function that '
                    f"returns tensors, or no codec"
                )
            array = _array_at(spec, memory, offset)
            if spec.dtype in STAND_INS:
                # Slots lie end to end: where a sample has an odd length, every other one starts unaligned.
                if spec.numel and (not array.flags.aligned or self._nbytes % array.itemsize):
                    raise ConfigError(
                        f'tensor "{name}" ({spec.dtype}) would be unaligned at byte {offset} of samples of '
                        f"{self._nbytes} bytes; order the tensors by item size, largest first, and make the "
                        f"sample a multiple of {array.itemsize} bytes"
                    )
                views[name] = tensor_over(spec.dtype, array)
            else:
                views[name] = array
        return views

    def decode(self, data: Buffer) -> dict[str, Any]:
        """Return the tensors of one sample, each with memory of its own; the sample's bytes are copied once.

        A tensor with the codec TopK comes as `TopKLogits`.

        Raises:
            ConfigError: `data` is not exactly `nbytes()` long.
            WireError: `data` is not what a codec writes.
            ImportError: torch is not installed.
        """
        check_length(data, self._nbytes)
        return {name: spec._tensor_at(data, offset) for name, (spec, offset) in self._layout.items()}

    def decode_single(self, data: Buffer, name: str) -> Any:
        """Return one tensor of a sample, as `decode` does; the rest of `data` is neither read nor checked.

        Raises:
            KeyError: no tensor has this name.
            ConfigError: `data` ends before the tensor does.
            WireError: `data` is not what the codec writes.
            ImportError: torch is not installed.
        """
        spec, offset = self._find(name)
        return spec.decode(memoryview(data).cast("B")[offset : offset + spec.nbytes])

    def decode_batch(self, samples: Sequence[Buffer]) -> dict[str, Any]:
        """Decode samples straight into stacked tensors, dtype [len(samples), *shape]: one copy.

        Raises:
            ConfigError: there are no samples, or one is not exactly `nbytes()` long.
            WireError: a sample is not what a codec writes.
            ImportError: torch is not installed.
        """
        if not samples:
            raise ConfigError("cannot stack 0 samples; need at least 1")
        torch = import_torch()
        for sample in samples:
            check_length(sample, self._nbytes)
        batch: dict[str, Any] = {}
        for name, (spec, offset) in self._layout.items():
            if spec.codec is not None:
                batch[name] = decode(spec._coder, spec._field, samples, offset, (len(samples),))
                continue
            stacked = torch.empty((len(samples), *spec.shape), dtype=spec.torch_dtype)
            rows = stacked.view(torch_dtype(array_dtype(spec.dtype))).numpy()
            for i, sample in enumerate(samples):
                rows[i] = _array_at(spec, sample, offset)
            batch[name] = stacked
        return batch

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> BatchConfig:
        """Build from `{"specs": [{"name": ..., "shape": [...], "dtype": ..., "codec": ...}, ...]}`.

        Raises:
            ConfigError: `config` is not a mapping, or a spec is invalid.
            TypeError: as for the class.
        """
        if not hasattr(config, "get"):
            raise ConfigError(
                f'batch config must be a mapping with the key "specs", got {type(config).__name__}'
            )
        return cls(config.get("specs", []))

    @classmethod
    def from_yaml(cls, path: str) -> BatchConfig:
        """Build from a YAML file with the content of `from_dict`.

        Raises:
            OSError: the file cannot be read.
            ConfigError, TypeError: as for `from_dict`.
        """
        import yaml

        with open(path, encoding="utf-8") as file:
            return cls.from_dict(yaml.safe_load(file))

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, made of dicts, lists, strings and ints only."""
        return {
            "specs": [
                {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}
                | ({} if spec.codec is None else {"codec": spec.codec})
                for spec in self.specs
            ]
        }

    def _check_names(self, tensors: Mapping[str, Any]) -> None:
        if tensors.keys() != self._layout.keys():
            missing, extra = self._layout.keys() - tensors.keys(), tensors.keys() - self._layout.keys()
            raise ConfigError(f"Tensor mismatch: missing={sorted(missing)}, extra={sorted(extra, key=str)}")

    def _writable(self, out: Any) -> memoryview:
        """Return the bytes of `out`, which must be those of one sample."""
        memory = memoryview(out)
        if memory.readonly or not memory.c_contiguous or memory.nbytes != self._nbytes:
            raise ConfigError(
                f"cannot write a sample of {self._nbytes} bytes to memory of {memory.nbytes} bytes "
                f"(read-only: {memory.readonly}, contiguous: {memory.c_contiguous})"
            )
        return memory.cast("B") if memory.nbytes else memory

    def _find(self, name: str) -> tuple[TensorSpec, int]:
        try:
            return self._layout[name]
        except KeyError:
            raise KeyError(f"Unknown tensor '{name}'. Available: {self.tensor_names}") from None


def make_xy_config(
    x_shape: tuple[int, ...], x_dtype: str, y_shape: tuple[int, ...], y_dtype: str
) -> BatchConfig:
    """Return the config of samples with two tensors, `x` and `y`.

    Raises:
        ConfigError: a shape or dtype is invalid; see `TensorSpec`.
    """
    return BatchConfig([TensorSpec("x", x_shape, x_dtype), TensorSpec("y", y_shape, y_dtype)])


def check_length(data: Buffer, expected: int) -> None:
    """Check that `data` holds `expected` bytes.

    Raises:
        ConfigError: it does not.
    """
    length = memoryview(data).nbytes
    if length != expected:
        raise ConfigError(f"Data length {length} != expected {expected}")


def array_dtype(dtype: str) -> str:
    """Return the numpy dtype with a tensor's bits: its own, or a whole number where numpy lacks it."""
    return STAND_INS.get(dtype, dtype)


def tensor_over(dtype: str, array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor on the memory of an array, which it keeps alive; no copy.

    Args:
        dtype: of the tensor.
        array: array_dtype(dtype), any shape.

    Raises:
        ImportError: torch is not installed.
    """
    tensor: Tensor = import_torch().from_numpy(array)
    return tensor.view(torch_dtype(dtype)) if dtype in STAND_INS else tensor


def _to_spec(spec: Any) -> TensorSpec:
    if isinstance(spec, TensorSpec):
        return spec
    if not hasattr(spec, "items"):
        raise TypeError(f"Expected TensorSpec or dict-like, got {type(spec)}")
    return TensorSpec(**{key: value for key, value in spec.items() if not str(key).startswith("_")})


def _checked_shape(name: str, shape: Iterable[Any]) -> tuple[int, ...]:
    try:
        dims = tuple(shape)
    except TypeError:
        raise ConfigError(f'tensor "{name}": shape must be a sequence of ints, got {shape!r}') from None
    sizes = []
    for i, dim in enumerate(dims):
        try:
            size = operator.index(dim)
        except TypeError:
            size = -1
        if size < 0 or isinstance(dim, bool):
            raise ConfigError(
                f'tensor "{name}": dimension {i} of shape {dims} is {dim!r}; must be a whole number >= 0'
            )
        sizes.append(size)
    return tuple(sizes)


def _check_dtype(dtype: object, where: str = "") -> None:
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ConfigError(f"{where}Unsupported dtype: {dtype}; supported are {', '.join(ITEM_BYTES)}")


def _array_at(spec: TensorSpec, data: Buffer, offset: int) -> np.ndarray[Any, Any]:
    """Return a view of one tensor within an encoded sample; its length has been checked."""
    array: np.ndarray[Any, Any] = import_numpy().ndarray(spec.shape, array_dtype(spec.dtype), data, offset)
    return array


#: Up to this many bytes per sample, the rows of a batch are laid out side by side before they are written.
_STAGED_BYTES = 16384
