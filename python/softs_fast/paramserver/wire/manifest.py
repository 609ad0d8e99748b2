"""The tensors of a model, by name, dtype and shape: what both sides agree on before anything else travels."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor, nn

from ...errors import ConfigError, WireError
from ...records import Json, Message, Record, most, span
from ...tensors import local_tensor
from .limits import MAX_ELEMENTS, MAX_MANIFEST_BYTES

__all__ = ["Entry", "Manifest"]

_FloatName = Literal["float32", "float64", "float16", "bfloat16"]
_IntegerName = Literal["int64", "int32", "int16", "int8", "uint8", "bool"]
_FLOATS, _INTEGERS = get_args(_FloatName), get_args(_IntegerName)
_MAX_NAME = 512


class Entry(Message):
    """One tensor.

    Attributes:
        name: Name, as in the module's `named_parameters` or `named_buffers`.
        dtype: Dtype as text, such as "float32".
        shape: Shape of the tensor.
    """

    name: Annotated[str, most(_MAX_NAME)]
    dtype: _FloatName | _IntegerName
    shape: Annotated[tuple[Annotated[int, span(0, MAX_ELEMENTS)], ...], most(16)]

    @property
    def n(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        """Return the entry as errors show it."""
        return f"{self.name} ({self.dtype} {list(self.shape)})"


class Manifest(Record, dict=True):
    """All tensors that travel, in the order in which a frame has them.

    Parameters without `requires_grad` and buffers that are not persistent do not travel: the job makes them the same on
    each side.

    Attributes:
        parameters: the trainable ones; floating dtypes.
        buffers: the persistent ones, such as the statistics of BatchNorm; floating dtypes, integers, bool.
    """

    parameters: Annotated[tuple[Entry, ...], most(MAX_MANIFEST_BYTES)]
    buffers: Annotated[tuple[Entry, ...], most(MAX_MANIFEST_BYTES)] = ()

    @classmethod
    def of(cls, module: nn.Module) -> Manifest:
        """Return the manifest of a module.

        Raises:
            ConfigError: nothing can be trained, a tensor has a dtype that cannot travel, or they are too many.
        """
        parameters = tuple(
            _entry(name, one, "parameter", _FLOATS)
            for name, one in module.named_parameters()
            if one.requires_grad
        )
        if not parameters:
            raise ConfigError("the module has no parameter with requires_grad; there is nothing to train")
        kept = module.state_dict().keys()
        buffers = tuple(
            _entry(name, one, "buffer", _FLOATS + _INTEGERS)
            for name, one in module.named_buffers()
            if name in kept
        )
        manifest = cls(parameters, buffers)
        if (n := len(manifest.encoded)) > MAX_MANIFEST_BYTES:
            raise ConfigError(
                f"the names and shapes of the model take {n} bytes; {MAX_MANIFEST_BYTES} at most"
            )
        for what, n in (
            ("parameters", manifest.n_parameters),
            ("buffers", manifest.n_floats + manifest.n_integers),
        ):
            if n > MAX_ELEMENTS:
                raise ConfigError(f"the {what} of the model have {n} elements; {MAX_ELEMENTS} at most")
        return manifest

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Parse what another process has sent.

        Raises:
            WireError: it is too long, not canonical JSON of a manifest, or an entry is out of range.
        """
        manifest = _FORMAT.decode(data)
        names = [entry.name for entry in manifest.parameters + manifest.buffers]
        for name in names if len(set(names)) < len(names) else ():
            if names.count(name) > 1:
                raise WireError(f"a manifest has the tensor {name[:64]} twice")
        for entry in manifest.parameters:
            if entry.dtype not in _FLOATS:
                raise WireError(f"a manifest has the parameter {entry}; dtypes are {', '.join(_FLOATS)}")
        counts = (manifest.n_parameters, manifest.n_floats + manifest.n_integers)
        if not manifest.parameters or max(counts) > MAX_ELEMENTS:
            raise WireError(f"a manifest has {counts[0]} elements of parameters; need 1 to {MAX_ELEMENTS}")
        if manifest.encoded != data:
            raise WireError("a manifest is not written in its canonical form")
        return manifest

    @cached_property
    def encoded(self) -> bytes:
        """Canonical JSON: keys sorted, no spaces, ASCII."""
        value = {
            "buffers": [[one.name, one.dtype, list(one.shape)] for one in self.buffers],
            "parameters": [[one.name, one.dtype, list(one.shape)] for one in self.parameters],
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of `encoded`."""
        return hashlib.sha256(self.encoded).digest()

    @cached_property
    def n_parameters(self) -> int:
        """Elements of all parameters."""
        return sum(entry.n for entry in self.parameters)

    @cached_property
    def float_buffers(self) -> tuple[Entry, ...]:
        """Buffers that travel as float32: a server averages them."""
        return tuple(entry for entry in self.buffers if entry.dtype in _FLOATS)

    @cached_property
    def integer_buffers(self) -> tuple[Entry, ...]:
        """Buffers that travel as int64: a server takes the greatest."""
        return tuple(entry for entry in self.buffers if entry.dtype not in _FLOATS)

    @cached_property
    def n_floats(self) -> int:
        """Elements of all floating buffers."""
        return sum(entry.n for entry in self.float_buffers)

    @cached_property
    def n_integers(self) -> int:
        """Elements of all integer buffers."""
        return sum(entry.n for entry in self.integer_buffers)

    @cached_property
    def parameter_slices(self) -> tuple[slice, ...]:
        """Where each parameter is in the flat vector."""
        ends = accumulate(entry.n for entry in self.parameters)
        return tuple(slice(end - entry.n, end) for entry, end in zip(self.parameters, ends, strict=True))

    def first_difference(self, theirs: Manifest) -> str | None:
        """Return the first difference in words, this manifest as "the server"; None if they are the same."""
        for kind in ("parameters", "buffers"):
            ours, other = getattr(self, kind), getattr(theirs, kind)
            for i, (one, two) in enumerate(zip(ours, other, strict=False)):
                if one != two:
                    return f"{kind[:-1]} {i}: the server has {one}, the worker has {two}"
            if len(ours) != len(other):
                longer, which = (ours, "server") if len(ours) > len(other) else (other, "worker")
                first = longer[min(len(ours), len(other))]
                return (
                    f"the server has {len(ours)} {kind}, the worker has {len(other)}; "
                    f"the first that only the {which} has is {first}"
                )
        return None


_FORMAT: Json[Manifest] = Json(Manifest, most_bytes=MAX_MANIFEST_BYTES, what="a manifest")


def _entry(name: str, tensor: Tensor, kind: str, dtypes: tuple[str, ...]) -> Entry:
    if local_tensor(name, tensor, kind=kind, dtypes=[getattr(torch, one) for one in dtypes]) is not tensor:
        raise ConfigError(
            f'{kind} "{name}" is a DTensor; expected a whole tensor in each process: shard no model of a parameter server'
        )
    dtype: Any = str(tensor.dtype).removeprefix("torch.")
    if len(name) > _MAX_NAME:
        raise ConfigError(f"the name {name[:64]}... has {len(name)} characters; {_MAX_NAME} at most")
    return Entry(name, dtype, tuple(tensor.shape))
