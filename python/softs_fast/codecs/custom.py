"""Codecs that a user writes in Python and registers by name."""

from __future__ import annotations

import inspect
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from ..errors import ConfigError, WireError
from ..tensors import (
    checked_value,
    import_numpy,
    import_torch,
    is_tensor,
    on_host,
    tensor_over,
    torch_dtype,
)
from .parts import Field, Part, write

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CustomCodec", "made_by_name", "register_codec", "registered_names", "registered_text"]


class CustomCodec(ABC):
    """Base class of codecs that a user writes; `register_codec` makes one known by its `name`.

    A codec is kept as its text, `NAME` or `NAME:PARAMETERS`, and made again from it wherever it is needed, so its
    parameters must say all of it. It is a value: it never changes, and is hashable, as a frozen dataclass is.

    Suppliers and students must have registered it under the same name, in each of their processes.
    """

    #: A letter from a to z, then such letters, digits and underscores; not the name of another codec.
    name: ClassVar[str]

    @abstractmethod
    def nbytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return how many bytes each tensor of this shape and dtype becomes, always the same number.

        Raises:
            ConfigError: the codec does not take such tensors.
        """

    @abstractmethod
    def encode(self, values: Tensor) -> Tensor:
        """Return the bytes of some tensors.

        Args:
            values: dtype [rows, *shape], on the device where the generator made them; any strides; not to be changed.

        Returns:
            uint8 [rows, nbytes(shape, dtype)], on any device.

        Raises:
            ConfigError: a value that the codec cannot hold.
        """

    @abstractmethod
    def decode(self, data: Tensor, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Return the tensors that `encode` was given, or as close as the codec keeps them.

        Args:
            data: Bytes, uint8 [rows, nbytes(shape, dtype)], on the host; bytes of a row lie one after the other. With
                `zero_copy=True` these are the slots themselves, else a copy. Not to be changed.
            shape: Shape of one tensor.
            dtype: Name of the dtype, as in `TensorSpec`.

        Returns:
            dtype [rows, *shape], on the host. It may lie on `data`, and keeps that then.

        Raises:
            WireError: bytes that `encode` does not write. Any other exception becomes one.
        """

    @property
    def parameters(self) -> str:
        """What the text of this codec has after its name; empty unless a class overrides it."""
        return ""

    @classmethod
    def from_parameters(cls, parameters: str) -> Self:
        """Return the codec with these `parameters`; a class that has any overrides it.

        Raises:
            ConfigError: they mean nothing. Any other exception becomes one.
        """
        if parameters:
            raise ConfigError(f"it takes no parameters, got {parameters!r}")
        return cls()

    def __str__(self) -> str:
        """Return what `as_codec` takes."""
        return f"{self.name}:{self.parameters}" if self.parameters else self.name

    def _parts(self, field: Field) -> tuple[Part, ...]:
        n_bytes = self.nbytes(field.shape, field.dtype)
        try:
            size = operator.index(n_bytes)
        except TypeError:
            size = -1
        if isinstance(n_bytes, bool) or size < 0:
            raise ConfigError(f'nbytes of codec "{self}" must be a whole number from 0 on, got {n_bytes!r}')
        return (Part(0, (size,), "uint8", None),)

    def _write(
        self, field: Field, value: Any, rows: tuple[int, ...], outs: Sequence[memoryview], offset: int
    ) -> None:
        values = _as_tensor(field, value, rows)
        if not outs:
            return
        try:
            data = self.encode(values if rows else values.unsqueeze(0))
        except ConfigError as error:
            raise ConfigError(f'tensor "{field.name}": {error}') from error
        (part,) = self._parts(field)
        self._check(field, data, "encoded it as", "uint8", (len(outs), *part.shape))
        write(field.name, None, import_numpy().ascontiguousarray(on_host(data)).reshape(-1), outs, offset)

    def _assemble(self, field: Field, tensors: Sequence[Tensor]) -> Any:
        (data,) = tensors
        is_batch = data.ndim > 1
        rows = data if is_batch else data.unsqueeze(0)
        try:
            decoded = self.decode(rows, field.shape, field.dtype)
        except Exception as error:
            said = str(error) if isinstance(error, WireError) else repr(error)
            raise WireError(f'tensor "{field.name}" cannot be decoded by codec "{self}": {said}') from error
        self._check(field, decoded, "decoded it to", field.dtype, (len(rows), *field.shape))
        if not decoded.is_cpu:
            raise ConfigError(
                f'tensor "{field.name}": codec "{self}" decoded it to {decoded.device}, not the host'
            )
        return decoded if is_batch else decoded[0]

    def _check(self, field: Field, made: object, did: str, dtype: str, shape: tuple[int, ...]) -> None:
        if not is_tensor(made):
            have = f"an object of type {type(made).__name__}"
        elif made.dtype == torch_dtype(dtype) and tuple(made.shape) == shape:
            return
        else:
            have = f"{str(made.dtype).removeprefix('torch.')} {list(made.shape)}"
        raise ConfigError(
            f'tensor "{field.name}": codec "{self}" {did} {have}, need a tensor {dtype} {list(shape)}'
        )


_C = TypeVar("_C", bound=type[CustomCodec])


def register_codec(codec_class: _C) -> _C:
    """Make a class of codecs known by its `name` in this process; for use as a decorator, too.

    Names in files and messages are looked up among the registered ones. Nothing is ever imported by them.

    Args:
        codec_class: a class derived from `CustomCodec`.

    Returns:
        The class.

    Raises:
        ConfigError: it is no such class, has abstract methods, cannot be hashed, or its name is no name or is taken.
    """
    if not isinstance(codec_class, type) or not issubclass(codec_class, CustomCodec):
        raise ConfigError(f"a codec must be a class derived from CustomCodec, got {codec_class!r}")
    name, label = getattr(codec_class, "name", None), codec_class.__qualname__
    if inspect.isabstract(codec_class):
        missing = ", ".join(sorted(codec_class.__abstractmethods__))
        raise ConfigError(f"codec {label} has abstract methods: {missing}")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"codec {label}: name must be a to z, 0 to 9 and _, a letter first, got {name!r}")
    if name in _BUILT_IN or name in _REGISTERED:
        owner = _REGISTERED[name].__qualname__ if name in _REGISTERED else "softs_fast"
        raise ConfigError(f"codec {label}: the name {name!r} is taken by {owner}; choose another one")
    if codec_class.__hash__ is None:
        raise ConfigError(f"codec {label} cannot be hashed; make it a frozen dataclass")
    _REGISTERED[name] = codec_class
    return codec_class


def registered_names() -> list[str]:
    """Return the names of all registered codecs, sorted."""
    return sorted(_REGISTERED)


def registered_text(codec: CustomCodec) -> str:
    """Return the text of a codec.

    Raises:
        ConfigError: its class is not registered.
    """
    if _REGISTERED.get(codec.name) is not type(codec):
        raise ConfigError(
            f"codec {type(codec).__qualname__} is not registered; call softs_fast.codecs.register_codec with it, in each "
            "process"
        )
    return str(codec)


def made_by_name(name: str, parameters: str) -> CustomCodec | None:
    """Return the codec of a registered class, made from its parameters; None if no class has this name.

    Raises:
        ConfigError: the parameters mean nothing to the class, or the codec that it makes of them has other ones.
    """
    codec_class = _REGISTERED.get(name)
    if codec_class is None:
        return None
    try:
        codec = codec_class.from_parameters(parameters)
    except Exception as error:
        said = str(error) if isinstance(error, ConfigError) else repr(error)
        raise ConfigError(f'codec "{name}": {said}') from error
    if type(codec) is not codec_class or codec.parameters != parameters:
        raise ConfigError(
            f'codec "{name}": from_parameters({parameters!r}) made {codec!r}, which has other ones'
        )
    return codec


def _as_tensor(field: Field, value: Any, rows: tuple[int, ...]) -> Tensor:
    """Return a value as a tensor, dtype [*rows, *shape], on its device; no copy unless torch cannot use its memory."""
    bits = checked_value(field.name, field.dtype, (*rows, *field.shape), value)
    import_torch()
    if is_tensor(value):
        return value.detach()
    array = on_host(bits)
    is_usable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return tensor_over(field.dtype, array if is_usable else array.copy())


#: Names of the codecs of this package.
_BUILT_IN = ("exact", "cast", "int8", "topk")
#: Classes of codecs by name.
_REGISTERED: dict[str, type[CustomCodec]] = {}
