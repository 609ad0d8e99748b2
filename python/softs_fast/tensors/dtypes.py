"""Dtypes by name in numpy and torch, and the conversion of values to bits of a dtype.

Neither library is imported before it is needed.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor
    from typing_extensions import TypeIs

    Array = np.ndarray[Any, Any]

__all__ = [
    "ITEM_BYTES",
    "STAND_INS",
    "array_dtype",
    "checked_value",
    "contiguous_bytes",
    "copy_into",
    "import_numpy",
    "import_torch",
    "is_tensor",
    "on_host",
    "tensor_over",
    "torch_dtype",
]

#: Bytes of one element of each dtype.
ITEM_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

#: Dtypes that numpy lacks, and the integer dtypes that carry their bits; torch has both.
STAND_INS: dict[str, str] = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def checked_value(name: str, dtype: str, shape: tuple[int, ...], value: Any) -> Array | Tensor:
    """Return an array with the bits of `value`, on its memory; a tensor, if that is on a device.

    Its dtype is the one of that name, or the integer dtype that carries its bits where numpy has none.

    Args:
        name: Name of the field, for errors.
        dtype: Required dtype; nothing is cast. A number of Python has no dtype: it must be of the kind of this
            dtype and in its range.
        shape: Required shape; () for a number.
        value: A numpy array or scalar, a torch tensor on any device, or a number.

    Raises:
        ConfigError: another shape or dtype, no tensor, array or number, or a tensor without dense memory of its own.
        ImportError: a number for a dtype that only torch has, and torch is not installed.
    """
    np = import_numpy()
    if isinstance(value, np.ndarray | np.generic):
        _check_shape(name, shape, value.shape)
        if dtype in STAND_INS and value.dtype.name == dtype:
            # Of ml_dtypes, the package from which JAX has the dtypes that numpy lacks.
            return np.asarray(value).view(STAND_INS[dtype])  # type: ignore[no-any-return]
        if dtype in STAND_INS or value.dtype != _numpy_dtype(dtype):
            raise _dtype_mismatch(name, value.dtype, dtype)
        array: Array = np.asarray(value)
        return array
    if is_tensor(value):
        _check_shape(name, shape, tuple(value.shape))
        if value.dtype != torch_dtype(dtype):
            raise _dtype_mismatch(name, value.dtype, torch_dtype(dtype))
        tensor = value.view(torch_dtype(STAND_INS[dtype])) if dtype in STAND_INS else value
        try:
            return on_host(tensor) if tensor.is_cpu or tensor.is_meta else tensor
        except (TypeError, RuntimeError) as error:
            raise ConfigError(f'tensor "{name}" has no values in dense memory: {error}') from None
    if isinstance(value, bool | int | float):
        _check_shape(name, shape, ())
        return _number(name, dtype, value)
    raise ConfigError(
        f'tensor "{name}" is of type {type(value).__name__}; need a tensor, an array or a number'
    )


def on_host(value: Array | Tensor) -> Array:
    """Return an array on the memory of what `checked_value` returned; a tensor on a device is copied."""
    return value.numpy(force=True) if is_tensor(value) else value


def copy_into(target: Array, value: Array | Tensor) -> None:
    """Copy what `checked_value` returned into `target`, in one copy, from any device.

    Args:
        target: the value's dtype and shape; aligned or not.
    """
    if is_tensor(value):
        import_torch().from_numpy(target).copy_(value)
    else:
        import_numpy().copyto(target, value)


def contiguous_bytes(value: Array | Tensor) -> Array | None:
    """Return the bytes of an array or a tensor, uint8 [n]; None if they are not contiguous, or not on the host.

    Args:
        value: Array or tensor of a dtype of numpy.
    """
    if is_tensor(value):
        if value.device.type != "cpu" or not value.is_contiguous():
            return None
        value = on_host(value)
    if not value.flags.c_contiguous:
        return None
    flat: Array = value.reshape(-1).view(import_numpy().uint8)
    return flat


def array_dtype(dtype: str) -> str:
    """Return the numpy dtype that carries a tensor's bits: its own, or an integer dtype where numpy lacks it."""
    return STAND_INS.get(dtype, dtype)


def tensor_over(dtype: str, array: Array) -> Tensor:
    """Return a tensor on the memory of an array, which it keeps alive; no copy.

    Args:
        dtype: Name of the dtype of the tensor.
        array: Array of the dtype array_dtype(dtype), any shape.

    Raises:
        ImportError: torch is not installed.
    """
    tensor: Tensor = import_torch().from_numpy(array)
    return tensor.view(torch_dtype(dtype)) if dtype in STAND_INS else tensor


def is_tensor(value: object) -> TypeIs[Tensor]:
    """Return whether a value is a torch tensor; False as long as torch is not imported."""
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


@functools.cache
def import_numpy() -> Any:
    """Return the module numpy."""
    import numpy

    return numpy


@functools.cache
def import_torch() -> Any:
    """Return the module torch.

    Raises:
        ImportError: it is not installed; the text says how to install it.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "tensors need torch, which is not installed: pip install 'softs-fast[torch]'"
        ) from error
    return torch


@functools.cache
def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a supported name.

    Raises:
        ImportError: torch is not installed.
    """
    dtype: torch.dtype = getattr(import_torch(), name)
    return dtype


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    dtype: np.dtype[Any] = import_numpy().dtype(name)
    return dtype


def _number(name: str, dtype: str, value: bool | int | float) -> Array:
    """Return a number of Python as an array [] with the bits of `dtype`."""
    np = import_numpy()
    if dtype == "bool" or isinstance(value, bool):
        fits = dtype == "bool" and isinstance(value, bool)
    elif "int" in dtype:
        limits = np.iinfo(dtype)
        fits = isinstance(value, int) and limits.min <= value <= limits.max
    else:
        largest = import_torch().finfo(torch_dtype(dtype)).max if dtype in STAND_INS else np.finfo(dtype).max
        fits = abs(value) <= float(largest) or value != value
        # One of the dtypes, float8_e4m3fn, has no infinity.
        fits |= abs(value) == math.inf and dtype != "float8_e4m3fn"
    if not fits:
        raise ConfigError(f'tensor "{name}": {type(value).__name__} {value!r} is no value of {dtype}')
    if dtype not in STAND_INS:
        array: Array = np.array(value, dtype)
        return array
    tensor = import_torch().tensor(value, dtype=torch_dtype(dtype), device="cpu")
    return on_host(tensor.view(torch_dtype(STAND_INS[dtype])))


def _check_shape(name: str, needed: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if shape != needed:
        raise ConfigError(f'Shape mismatch: {shape} != {needed}, expected by tensor "{name}"')


def _dtype_mismatch(name: str, dtype: object, needed: object) -> ConfigError:
    return ConfigError(f'Dtype mismatch: {dtype} != {needed}, expected by tensor "{name}"')
