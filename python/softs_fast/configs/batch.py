"""Configuration of one sample: named tensors of a dtype and a shape, laid end to end without padding.

Sizes and offsets need no torch, so a broker or a relay can use this module without it. torch is imported when a
torch tensor is encoded or decoded, or its dtype is requested. Arrays are written into slots without torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _core
from ..codecs import decode
from ..errors import ConfigError
from ..tensors import (
    STAND_INS,
    RaggedTensor,
    array_dtype,
    contiguous_bytes,
    copy_into,
    import_numpy,
    import_torch,
    on_host,
    tensor_over,
    torch_dtype,
)
from .ragged import LENGTH_BYTES, RaggedLayout
from .spec import TensorSpec, array_at, check_length

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    Buffer = bytes | bytearray | memoryview

__all__ = ["BatchConfig", "make_xy_config"]


@dataclass
class BatchConfig:
    """The tensors of one sample, in order.

    Args:
        specs: `TensorSpec`s, or mappings with the keys name, shape, dtype and, if need be, codec or ragged (keys that
            start with `_`, such as Hydra's `_target_`, are ignored). `specs` is a list of `TensorSpec` afterwards.

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
        self._names = frozenset(names)
        ragged = [spec for spec in self.specs if spec.ragged]
        # The tensors of fixed shape, and where they begin.
        self._layout: dict[str, tuple[TensorSpec, int]] = {}
        offset = LENGTH_BYTES * len(ragged)
        for spec in self.specs:
            if not spec.ragged:
                self._layout[spec.name] = (spec, offset)
                offset += spec.nbytes
        self._ragged = RaggedLayout(ragged, offset) if ragged else None
        self._nbytes = offset if self._ragged is None else self._ragged.n_bytes
        # What comes before the values of ragged tensors.
        self._head_bytes = offset
        self._has_codecs = any(spec.codec is not None for spec in self.specs)

    @property
    def tensor_names(self) -> list[str]:
        """Names in the order in which the tensors are laid out."""
        return [spec.name for spec in self.specs]

    @property
    def has_codecs(self) -> bool:
        """Whether any tensor is stored by a codec."""
        return self._has_codecs

    @property
    def ragged(self) -> RaggedLayout | None:
        """Where the ragged tensors are; None if there is none."""
        return self._ragged

    def nbytes(self) -> int:
        """Return the size of one encoded sample in bytes; of the longest one, if tensors are ragged."""
        return self._nbytes

    def sample_nbytes(self, data: Buffer) -> int:
        """Return the size in bytes of the sample that `data` begins with; `nbytes()` if no tensor is ragged.

        Args:
            data: the first bytes of a sample, eight for each ragged tensor at least.

        Raises:
            ConfigError: `data` is shorter.
            WireError: a tensor has a length that no sample has.
        """
        ragged = self._ragged
        return self._nbytes if ragged is None else ragged.bytes_of(ragged.lengths(data))

    def get_spec(self, name: str) -> TensorSpec:
        """Return the spec of a tensor.

        Raises:
            KeyError: no tensor has this name.
        """
        for spec in self.specs:
            if spec.name == name:
                return spec
        raise self._unknown(name)

    def get_offset(self, name: str) -> int:
        """Return where a tensor starts within a sample, in bytes.

        Raises:
            KeyError: no tensor has this name.
            ConfigError: the tensor is ragged: where it starts depends on the sample.
        """
        if name not in self._layout and self.get_spec(name).ragged:
            raise ConfigError(
                f'tensor "{name}" is ragged: where it starts depends on the lengths in the sample'
            )
        return self._find(name)[1]

    def encode(self, **tensors: Tensor) -> bytes:
        """Return one sample: all tensors end to end, each copied once; of ragged ones the elements that there are.

        Args:
            **tensors: one tensor per spec, by name, with the spec's dtype and shape; see `TensorSpec.encode`.

        Raises:
            ConfigError: a tensor is missing, extra, or has another shape or dtype, or its codec cannot hold it.
            ImportError: torch is not installed.
        """
        self._check_names(tensors)
        if self._has_codecs or self._ragged is not None:
            data = bytearray(self._nbytes)
            if data:
                self.encode_into(tensors, data)
            return bytes(data[: self.sample_nbytes(data)])
        contiguous = import_numpy().ascontiguousarray
        return b"".join([contiguous(spec._host_array(tensors[spec.name])).data for spec in self.specs])

    def encode_into(self, sample: Mapping[str, Any], out: Any) -> None:
        """Write one sample into `out`, one copy per tensor; on an error, part of it may be written.

        What a ragged tensor does not fill is left as it is: the last `nbytes() - sample_nbytes(out)` bytes.

        Args:
            sample: {name: dtype [*shape], [length, *shape[1:]] if it is ragged}, each a numpy array, a torch tensor on
                any device or, for the shape (), a number; any strides. Nothing is cast, except by a codec.
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
                _store(spec, spec._checked(sample[name]), [memory], offset, ())
            else:
                spec._encode_into(sample[name], (), [memory], offset)
        if self._ragged is not None:
            self._ragged.encode_into(sample, memory)

    def encode_batch_into(self, batch: Mapping[str, Any], outs: Sequence[Any]) -> None:
        """Write one sample into each of `outs`; on an error, part of them may be written.

        Args:
            batch: {name: dtype [len(outs), *shape]}, each a numpy array or a torch tensor as for
                `encode_into`. For a ragged tensor a list or tuple of len(outs) of them, [length, *shape[1:]] each, a
                `RaggedTensor`, or a nested tensor of torch.
            outs: Memory for each sample, as `encode_into` takes it.

        Raises:
            ConfigError, ImportError: as for `encode_into`.
        """
        self._check_names(batch)
        memories = [self._writable(out) for out in outs]
        n, n_bytes = len(memories), self._head_bytes
        plain = {name: at for name, at in self._layout.items() if at[0].codec is None}
        values = {name: spec._checked(batch[name], rows=(n,)) for name, (spec, _) in plain.items()}
        if n_bytes > _STAGED_BYTES:
            for name, (spec, offset) in plain.items():
                _store(spec, values[name], memories, offset, (n,))
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
                memory[:n_bytes] = staged_bytes[i * n_bytes : (i + 1) * n_bytes]
        for name, (spec, offset) in self._layout.items():
            if spec.codec is not None:
                spec._encode_into(batch[name], (n,), memories, offset)
        if self._ragged is not None:
            self._ragged.encode_batch_into(batch, memories)

    def views(self, out: Any) -> dict[str, Any]:
        """Return the tensors of one sample as views of `out`, to be filled in place; no copy.

        Args:
            out: Memory of the sample, as for `encode_into`.

        Returns:
            {name: dtype [*shape]}: numpy arrays, and torch tensors for bfloat16 and float8, which numpy
            lacks. They keep `out` alive. Tensors are laid out without padding, so an array may be unaligned:
            numpy supports such arrays, but they are slower.

        Raises:
            ConfigError: `out` is read-only or has another length; a bfloat16 tensor would be unaligned, which
                torch does not support; a tensor has a codec, so the sample does not contain its elements; a tensor is
                ragged, so its length is not known before it is there.
            ImportError: there is a bfloat16 or float8 tensor, and torch is not installed.
        """
        if self._ragged is not None:
            raise ConfigError(
                f'tensor "{self._ragged.specs[0].name}" is ragged, so it cannot be filled in place; use a function '
                f"that returns tensors"
            )
        memory = self._writable(out)
        views: dict[str, Any] = {}
        for name, (spec, offset) in self._layout.items():
            if spec.codec is not None:
                raise ConfigError(
                    f'tensor "{name}" is stored as {spec.codec}, so it cannot be filled in place; use a function that '
                    f"returns tensors, or no codec"
                )
            array = array_at(spec, memory, offset)
            if spec.dtype in STAND_INS:
                # Slots lie end to end: if samples have an odd length, every other slot starts unaligned.
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

        A tensor with the codec TopK is returned as `TopKLogits`, a ragged one with its own length.

        Raises:
            ConfigError: `data` is not exactly `nbytes()` long; longer, if a tensor is ragged.
            WireError: `data` is not what a codec writes, or ends before a ragged tensor does.
            ImportError: torch is not installed.
        """
        ragged = self._ragged
        if ragged is None:
            check_length(data, self._nbytes)
            return {name: spec._tensor_at(data, offset) for name, (spec, offset) in self._layout.items()}
        tensors = ragged.decode(data, ragged.checked_lengths(data))
        tensors |= {name: spec._tensor_at(data, offset) for name, (spec, offset) in self._layout.items()}
        return {name: tensors[name] for name in self.tensor_names}

    def decode_single(self, data: Buffer, name: str) -> Any:
        """Return one tensor of a sample, as `decode` does; the rest of `data` is neither read nor checked.

        Raises:
            KeyError: no tensor has this name.
            ConfigError: `data` ends before the tensor does.
            WireError: `data` is not what the codec writes, or ends before a ragged tensor does.
            ImportError: torch is not installed.
        """
        ragged = self._ragged
        if ragged is not None and self.get_spec(name).ragged:
            return ragged.decode(data, ragged.checked_lengths(data))[name]
        spec, offset = self._find(name)
        return spec.decode(memoryview(data).cast("B")[offset : offset + spec.nbytes])

    def decode_batch(self, samples: Sequence[Buffer]) -> dict[str, Any]:
        """Decode samples into stacked tensors, dtype [len(samples), *shape], with one copy; ragged ones are `RaggedTensor`s.

        Raises:
            ConfigError: there are no samples, or one is not exactly `nbytes()` long; longer, if a tensor is ragged.
            WireError: a sample is not what a codec writes, or ends before a ragged tensor does.
            ImportError: torch is not installed.
        """
        if not samples:
            raise ConfigError("cannot stack 0 samples; need at least 1")
        torch = import_torch()
        ragged = self._ragged
        lengths = []
        for sample in samples:
            if ragged is None:
                check_length(sample, self._nbytes)
            else:
                lengths.append(ragged.checked_lengths(sample))
        batch: dict[str, Any] = {}
        for name, (spec, offset) in self._layout.items():
            if spec.codec is not None:
                batch[name] = decode(spec._coder, spec._field, samples, offset, (len(samples),))
                continue
            stacked = torch.empty((len(samples), *spec.shape), dtype=spec.torch_dtype, device="cpu")
            rows = stacked.view(torch_dtype(array_dtype(spec.dtype))).numpy()
            for i, sample in enumerate(samples):
                rows[i] = array_at(spec, sample, offset)
            batch[name] = stacked
        if ragged is None:
            return batch
        batch |= ragged.decode_batch(list(zip(samples, lengths, strict=True)))
        return {name: batch[name] for name in self.tensor_names}

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Stack decoded samples, as torch's `default_collate` does; ragged tensors become `RaggedTensor`s.

        It is the `collate_fn` for a DataLoader of torch that gets single samples.

        Args:
            samples: Samples that `decode` returned, at least one.

        Raises:
            ConfigError: ragged tensors differ in more than their length.
            ImportError: torch is not installed.
        """
        import_torch()
        from torch.utils.data import default_collate

        return {
            spec.name: (RaggedTensor.from_samples if spec.ragged else default_collate)(
                [sample[spec.name] for sample in samples]
            )
            for spec in self.specs
        }

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> BatchConfig:
        """Build from `{"specs": [{"name": ..., "shape": [...], "dtype": ..., "codec": ..., "ragged": ...}, ...]}`.

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
        """Return what `from_dict` takes, made of dicts, lists, strings, ints and bools only."""
        return {
            "specs": [
                {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}
                | ({} if spec.codec is None else {"codec": spec.codec})
                | ({"ragged": True} if spec.ragged else {})
                for spec in self.specs
            ]
        }

    def _check_names(self, tensors: Mapping[str, Any]) -> None:
        if tensors.keys() != self._names:
            missing, extra = self._names - tensors.keys(), tensors.keys() - self._names
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
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> KeyError:
        return KeyError(f"Unknown tensor '{name}'. Available: {self.tensor_names}")


def make_xy_config(
    x_shape: tuple[int, ...], x_dtype: str, y_shape: tuple[int, ...], y_dtype: str
) -> BatchConfig:
    """Return the config of samples with two tensors, `x` and `y`.

    Raises:
        ConfigError: a shape or dtype is invalid; see `TensorSpec`.
    """
    return BatchConfig([TensorSpec("x", x_shape, x_dtype), TensorSpec("y", y_shape, y_dtype)])


def _store(
    spec: TensorSpec,
    value: np.ndarray[Any, Any] | Tensor,
    memories: list[memoryview],
    offset: int,
    rows: tuple[int, ...],
) -> None:
    """Copy a tensor without a codec, [*rows, *spec.shape], into each sample."""
    flat = contiguous_bytes(value) if spec.nbytes >= _STAGED_BYTES else None
    if flat is not None:
        _core.copy_rows(flat, memories, offset)
        return
    for i, memory in enumerate(memories):
        copy_into(array_at(spec, memory, offset), value[i, ...] if rows else value)


def _to_spec(spec: Any) -> TensorSpec:
    if isinstance(spec, TensorSpec):
        return spec
    if not hasattr(spec, "items"):
        raise TypeError(f"Expected TensorSpec or dict-like, got {type(spec)}")
    return TensorSpec(**{key: value for key, value in spec.items() if not str(key).startswith("_")})


#: Up to this many bytes per sample, the rows of a batch are laid out side by side before they are written. Larger tensors
#: are copied by native code, which knows how their slots are best written.
_STAGED_BYTES = 16384
