"""Nested states as JSON and tensors: what is received from another process is never unpickled.

A value arrives with the type that it had: a scheduler that holds a Counter, an OrderedDict or a numpy float goes on with
one. A value that cannot be sent so is refused by its place in the state.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from ...errors import ConfigError, PeerLost, WireError
from ...tensors import local_tensor

#: Size of the JSON of a state, at most.
MAX_TREE_BYTES = 1 << 28

# Nesting of a state, at most.
_MAX_DEPTH = 100
# Elements of a tensor, at most.
_MAX_ITEMS = 1 << 48

_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
    if hasattr(torch, name)
}
# Kinds of numpy's dtypes: bool, integers, floats and complex numbers.
_NUMPY_KINDS = "biufc"
_SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_BYTES: dict[str, Callable[[bytes], Any]] = {"bytes": bytes, "bytearray": bytearray, "stream": io.BytesIO}
# What a defaultdict may make.
_FACTORIES: dict[str, Any] = {one.__name__: one for one in (dict, list, set, tuple, int, float, bool, str)}
_POSSIBLE = (
    "None, bool, int, float, complex, str, bytes, BytesIO, dict, OrderedDict, defaultdict of a built-in type, Counter, "
    "list, tuple, namedtuple of a module, set, frozenset, deque, torch.Size, torch.dtype, tensors, and numpy's arrays "
    "and scalars"
)


def encode_tree(
    tree: Any, is_kept: Callable[[str], bool] = lambda _: False
) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Return the JSON of a tree, and its tensors in their order, by their places in the tree.

    Args:
        tree: Containers of Python, of any depth up to 100, with numbers, texts, bytes, tensors and numpy's arrays.
        is_kept: Whether the receiver has the tensor of a place already: the JSON has that place, and the tensor is left out.

    Raises:
        ConfigError: The tree has something else; the text says where.
    """
    encoder = _Encoder(is_kept)
    node = encoder.node(tree, "", 0)
    try:
        text = json.dumps(node, separators=(",", ":")).encode()
    except ValueError as error:  # such as an integer of more than 4,300 digits
        raise ConfigError(f"the state cannot be sent: {error}") from error
    if len(text) > MAX_TREE_BYTES:
        raise ConfigError(f"the state has {len(text)} bytes without its tensors; at most {MAX_TREE_BYTES}")
    return text, encoder.tensors


def decode_tree(
    text: bytes, receive: Callable[[torch.Tensor], None], kept: Mapping[str, torch.Tensor] | None = None
) -> Any:
    """Return the tree of a JSON.

    Args:
        text: As `encode_tree` makes it; may be anything.
        receive: Fills a new tensor of host memory; called for each one in their order.
        kept: Tensors that the receiver has already, by their places in the tree.

    Raises:
        WireError: The JSON is malformed.
        PeerLost: The JSON names a place of which the receiver has no tensor.
    """
    try:
        return _Decoder(receive, kept or {}).value(json.loads(text), 0)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise WireError(f"the state of the source is malformed: {error}") from error


class _Encoder:
    """Makes nodes of values, and collects the tensors."""

    def __init__(self, is_kept: Callable[[str], bool]) -> None:
        self._is_kept = is_kept
        self.tensors: dict[str, torch.Tensor] = {}

    def _keep(self, path: str, tensor: torch.Tensor) -> None:
        # Keys with dots in them can give two places one path.
        while path in self.tensors:
            path += "'"
        self.tensors[path] = tensor

    def node(self, value: Any, path: str, depth: int) -> list[Any]:
        """Return the node of a value."""
        if depth > _MAX_DEPTH:
            raise ConfigError(f'state "{path[:80]}..." is nested more than {_MAX_DEPTH} times')
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return ["v", value]
        if kind is float:
            return ["f", value.hex()]
        if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, (np.ndarray, np.generic)):
            return self._array(value, path)
        if kind is torch.dtype:
            return ["dtype", _name_of(value)]
        if kind in (bytes, bytearray):
            return self._bytes(path, kind.__name__, bytes(value))
        if kind is io.BytesIO:
            return [*self._bytes(path, "stream", value.getvalue()), value.tell()]
        return self._container(value, path, depth)

    def _container(self, value: Any, path: str, depth: int) -> list[Any]:
        kind = type(value)
        for name, known in _SEQUENCES.items():
            if kind is known:
                return [name, self._nodes(value, path, depth)]
        for name, known_mapping in _MAPPINGS.items():
            if kind is known_mapping:
                # Modules keep the versions of their formats in an attribute of their states.
                extra = [self.node(vars(value), f"{path}.__dict__", depth + 1)] if name == "ordered" else []
                return [name, self._pairs(value, path, depth), *extra]
        if kind is defaultdict and (value.default_factory in (None, *_FACTORIES.values())):
            factory = value.default_factory
            return ["default", self._pairs(value, path, depth), factory and factory.__name__]
        if kind is deque:
            return ["deque", self._nodes(value, path, depth), value.maxlen]
        if isinstance(value, tuple) and _named(kind.__module__, kind.__qualname__) is kind:
            return ["named", kind.__module__, kind.__qualname__, self._nodes(value, path, depth)]
        raise ConfigError(f'state "{path}" is a {kind.__name__}; possible are {_POSSIBLE}')

    def _nodes(self, values: Iterable[Any], path: str, depth: int) -> list[Any]:
        return [self.node(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(values)]

    def _pairs(self, value: dict[Any, Any], path: str, depth: int) -> list[Any]:
        return [
            [
                self.node(key, f"the key {key!r} of {path}", depth + 1),
                self.node(one, f"{path}.{key}".lstrip("."), depth + 1),
            ]
            for key, one in value.items()
        ]

    def _tensor(self, value: torch.Tensor, path: str) -> list[Any]:
        local = local_tensor(path, value, kind="state", dtypes=_DTYPES.values(), written=False)
        if local is not value:
            raise ConfigError(
                f'state "{path}" is a part of a DTensor; a worker copies whole states only: use Membership'
            )
        if self._is_kept(path):
            return ["kept", path]
        self._keep(path, value)
        return ["t", _name_of(value.dtype), list(value.shape)]

    def _array(self, value: Any, path: str) -> list[Any]:
        if value.dtype.kind not in _NUMPY_KINDS or not (
            isinstance(value, np.generic) or type(value) is np.ndarray
        ):
            raise ConfigError(
                f'state "{path}" is a {type(value).__name__} of {value.dtype}; only numbers of numpy can be sent'
            )
        name = "array" if isinstance(value, np.ndarray) else "scalar"
        return [*self._bytes(path, name, value.tobytes()), value.dtype.str, list(value.shape)]

    def _bytes(self, path: str, name: str, data: bytes) -> list[Any]:
        self._keep(path, torch.from_numpy(np.frombuffer(bytearray(data), np.uint8)))
        return [name, len(data)]


class _Decoder:
    """Makes values of nodes, which may be anything."""

    def __init__(self, receive: Callable[[torch.Tensor], None], kept: Mapping[str, torch.Tensor]) -> None:
        self._receive = receive
        self._kept = kept

    def value(self, node: Any, depth: int) -> Any:
        """Return the value of a node."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} times")
        match node:
            case ["v", None | bool() | int() | str() as value]:
                return value
            case ["f", str(text)]:
                return float.fromhex(text)
            case ["complex", str(real), str(imag)]:
                return complex(float.fromhex(real), float.fromhex(imag))
            case ["t", str(dtype), list(shape)]:
                return self._tensor(dtype, shape)
            case ["kept", str(path)]:
                if path not in self._kept:
                    raise PeerLost(
                        f'this worker lacks "{path}", which it was to have by the steps that it has applied'
                    )
                return self._kept[path]
            case ["dtype", str(name)]:
                return _DTYPES[name]
            case [("bytes" | "bytearray") as kind, int(length)]:
                return _BYTES[kind](self._bytes(length))
            case ["stream", int(length), int(position)]:
                stream = io.BytesIO(self._bytes(length))
                stream.seek(position)
                return stream
            case [("array" | "scalar") as kind, int(length), str(dtype), list(shape)]:
                return self._array(kind, length, dtype, shape)
            case _:
                return self._container(node, depth)

    def _container(self, node: Any, depth: int) -> Any:
        match node:
            case [str(kind), list(nodes)] if kind in _SEQUENCES:
                return _SEQUENCES[kind](self._values(nodes, depth))
            case ["deque", list(nodes), None | int() as maxlen]:
                return deque(self._values(nodes, depth), maxlen)
            case ["named", str(module), str(name), list(nodes)]:
                kind = _named(module, name)
                if kind is None or len(kind._fields) != len(nodes):
                    raise ValueError(f"this process has no namedtuple {module}.{name} of {len(nodes)} fields")
                # Its own constructor is code of the user's.
                return tuple.__new__(kind, self._values(nodes, depth))
            case [("dict" | "counter") as kind, list(pairs)]:
                found = _MAPPINGS[kind]()
                self._fill(found, pairs, depth)
                return found
            case ["ordered", list(pairs), attributes]:
                ordered: OrderedDict[Any, Any] = OrderedDict()
                self._fill(ordered, pairs, depth)
                vars(ordered).update(self.value(attributes, depth + 1))
                return ordered
            case ["default", list(pairs), None | str() as factory]:
                default: defaultdict[Any, Any] = defaultdict(None if factory is None else _FACTORIES[factory])
                self._fill(default, pairs, depth)
                return default
        raise ValueError(f"a node is {str(node)[:50]}")

    def _values(self, nodes: list[Any], depth: int) -> list[Any]:
        return [self.value(one, depth + 1) for one in nodes]

    def _fill(self, found: dict[Any, Any], pairs: list[Any], depth: int) -> None:
        for key, one in pairs:
            # Their tensors come in this order.
            place = self.value(key, depth + 1)
            found[place] = self.value(one, depth + 1)

    def _tensor(self, dtype: str, shape: list[Any]) -> torch.Tensor:
        tensor = torch.empty(_checked(shape), dtype=_DTYPES[dtype], device="cpu")
        self._receive(tensor)
        return tensor

    def _bytes(self, length: int) -> bytes:
        tensor = torch.empty(_checked([length]), dtype=torch.uint8, device="cpu")
        self._receive(tensor)
        return tensor.numpy().tobytes()

    def _array(self, kind: str, length: int, name: str, shape: list[Any]) -> Any:
        dtype = np.dtype(name)
        if dtype.kind not in _NUMPY_KINDS or math.prod(_checked(shape)) * dtype.itemsize != length:
            raise ValueError(f"an array is of {name[:50]} {str(shape)[:50]}, in {length} bytes")
        array = np.frombuffer(self._bytes(length), dtype).reshape(shape).copy()
        return array if kind == "array" else array[()]


def _checked(shape: list[Any]) -> list[int]:
    if not all(type(one) is int and 0 <= one <= _MAX_ITEMS for one in shape) or math.prod(shape) > _MAX_ITEMS:
        raise ValueError(f"a shape is {str(shape)[:50]}")
    return shape


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _named(module: str, name: str) -> Any:
    """Return the class of a namedtuple of a module that is imported already; None if there is none."""
    kind = vars(sys.modules.get(module, object)).get(name)
    return kind if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") else None
