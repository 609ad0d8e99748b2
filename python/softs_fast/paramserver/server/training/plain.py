"""States of optimizers and schedules as what torch's loader for tensors and numbers reads, and back as they were."""

from __future__ import annotations

import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import ConfigError
from ....tensors import local_tensor

__all__ = ["decode_state", "encode_state", "first_difference"]

_SCALARS = (bool, int, float, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
_SEQUENCES: dict[str, type] = {one.__name__: one for one in (list, tuple, set, frozenset)}
_MAPPINGS: dict[str, type] = {one.__name__: one for one in (dict, OrderedDict, Counter)}
_FACTORIES: dict[str, Callable[[], object] | None] = {
    one.__name__: one for one in (list, dict, set, tuple, int, float, str, bool)
} | {"": None}


def encode_state(value: Any, path: str) -> Any:
    """Return a state as tensors, numbers, texts, lists and tuples; `decode_state` makes the same state of it.

    Args:
        value: State that an object returned.
        path: Name of the state, for errors.

    Raises:
        ConfigError: Something in it cannot be read back as it is; the text says where it is.
    """
    try:
        return _encode(value, path)
    except RecursionError:
        raise ConfigError(
            f"{path} contains itself; expected a tree of containers, numbers and tensors"
        ) from None


def decode_state(node: Any) -> Any:
    """Return the state that `encode_state` was given.

    Raises:
        ValueError: It is none.
    """
    if type(node) is not tuple:
        return node
    match node:
        case (str(kind), list(items)) if kind in _SEQUENCES:
            return _SEQUENCES[kind](decode_state(one) for one in items)
        case (str(kind), list(items)) if kind in _MAPPINGS:
            # A Counter made of pairs would count the pairs.
            return _MAPPINGS[kind](dict(_pairs(items)))
        case ("defaultdict", str(factory), list(items)) if factory in _FACTORIES:
            return defaultdict(_FACTORIES[factory], _pairs(items))
        case ("deque", int() | None as most, list(items)):
            return deque((decode_state(one) for one in items), most)
        case ("numpy", str(dtype), shape, bytes(data)):
            import numpy

            array = numpy.frombuffer(data, dtype)
            return array[0] if shape is None else array.reshape(shape).copy()
    raise ValueError(f"{str(node)[:64]} is no part of a state")


def first_difference(one: Any, other: Any, path: str) -> str | None:
    """Return where an encoded state differs from another in types, dtypes or bits; None if it has all of it.

    The order of sets and dicts does not matter, and neither do more keys of a dict: newer versions of torch add some to
    the groups of an optimizer.
    """
    one, other = _sorted(one), _sorted(other)
    if _kind(one) == _kind(other) == "dict":
        keys = {repr(key) for key, _ in one[1]}
        other = "dict", [pair for pair in other[1] if repr(pair[0]) in keys]
    if type(one) is not type(other):
        return f"{path} is of type {type(other).__name__}, expected {type(one).__name__}"
    if isinstance(one, Tensor):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{path} is {other.dtype} {list(other.shape)}, expected {one.dtype} {list(one.shape)}"
        return None if torch.equal(_bits(one), _bits(other)) else f"{path} has other values"
    if isinstance(one, (list, tuple)) and type(one) is not torch.Size:
        if len(one) != len(other):
            return f"{path} has {len(other)} entries, expected {len(one)}"
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            # A container is its kind and a list; a mapping's list has pairs, which are named by their keys.
            name = (
                f".{left[0]}" if _is_pair(left) else "" if type(one) is tuple or _is_pair(one) else f".{at}"
            )
            found = first_difference(left, right, path + name)
            if found is not None:
                return found
        return None
    is_same = one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))
    return None if is_same else f"{path} is {str(other)[:64]}, expected {str(one)[:64]}"


def _kind(node: Any) -> Any:
    return node[0] if type(node) is tuple and node else None


def _sorted(node: Any) -> Any:
    """Return a container without the order of its entries, unless that matters."""
    kind = _kind(node)
    if kind in ("set", "frozenset"):
        return kind, sorted(node[1], key=repr)
    if kind in ("dict", "Counter", "defaultdict"):
        return *node[:-1], sorted(node[-1], key=lambda pair: repr(pair[0]))
    return node


def _is_pair(node: Any) -> bool:
    return isinstance(node, list) and len(node) == 2 and isinstance(node[0], (str, int))


def _encode(value: Any, path: str) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if isinstance(value, Tensor):
        return _tensor(value, path)
    if _SEQUENCES.get(kind.__name__) is kind:
        return kind.__name__, [_encode(one, f"{path}.{at}") for at, one in enumerate(value)]
    if _MAPPINGS.get(kind.__name__) is kind:
        return kind.__name__, _encode_pairs(value, path)
    if kind is defaultdict:
        names = [name for name, factory in _FACTORIES.items() if factory is value.default_factory]
        if names:
            return "defaultdict", names[0], _encode_pairs(value, path)
    if kind is deque:
        return "deque", value.maxlen, [_encode(one, f"{path}.{at}") for at, one in enumerate(value)]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
        is_plain = kind is numpy.ndarray or kind.__module__ == "numpy"
        if is_plain and value.dtype.kind in "biufc":
            shape = value.shape if kind is numpy.ndarray else None
            return "numpy", value.dtype.str, shape, value.tobytes()
    raise ConfigError(
        f"{path} is of type {kind.__module__}.{kind.__qualname__}, which cannot be read back from a file; leave it out of "
        "the state_dict, and make it where the object is made"
    )


def _encode_pairs(value: dict[Any, Any], path: str) -> list[Any]:
    return [[_encode(key, f"key of {path}"), _encode(one, f"{path}.{key}")] for key, one in value.items()]


def _pairs(items: list[Any]) -> Iterable[tuple[Any, Any]]:
    return [(decode_state(key), decode_state(one)) for key, one in items]


def _tensor(value: Tensor, path: str) -> Tensor:
    one = local_tensor(path, value, kind="state", written=False)
    if type(one) not in (Tensor, nn.Parameter) or not one.is_cpu:
        raise ConfigError(
            f"{path} is a {type(value).__name__} on {value.device}; expected a plain tensor on the CPU in a state"
        )
    one = one.detach().resolve_conj().resolve_neg()
    # A view would take the whole storage along.
    return one if one.untyped_storage().nbytes() == one.nbytes else one.clone()


def _bits(one: Tensor) -> Tensor:
    return one.detach().contiguous().reshape(-1).view(torch.uint8)
