"""Nested states as JSON and tensors: what is received from another process is never unpickled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...errors import ConfigError, WireError
from ...tensors.dtypes import ITEM_BYTES, torch_dtype

#: Size of the JSON of a state, at most.
MAX_TREE_BYTES = 1 << 28

# Nesting of a state, at most.
_MAX_DEPTH = 100
# Elements of a tensor, at most.
_MAX_ITEMS = 1 << 48


def encode_tree(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Return the JSON of a tree, and its tensors in their order.

    Args:
        tree: of dicts with keys that are str, int or bool, lists, tuples, None, bool, int, float, str and tensors.

    Raises:
        ConfigError: it has something else; the text says where.
    """
    tensors: list[torch.Tensor] = []
    text = json.dumps(_encode(tree, tensors, ""), separators=(",", ":")).encode()
    if len(text) > MAX_TREE_BYTES:
        raise ConfigError(f"the state has {len(text)} bytes without its tensors; at most {MAX_TREE_BYTES}")
    return text, tensors


def decode_tree(text: bytes, receive: Callable[[torch.Tensor], None]) -> Any:
    """Return the tree of a JSON.

    Args:
        text: as `encode_tree` makes it; may be anything.
        receive: fills a new tensor of host memory; called for each one in their order.

    Raises:
        WireError: it is malformed.
    """
    try:
        return _decode(json.loads(text), receive, 0)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise WireError(f"the state of the source is malformed: {error}") from error


def _encode(value: Any, tensors: list[torch.Tensor], path: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return ["v", value]
    if isinstance(value, float):
        return ["f", value.hex()]
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise ConfigError(
                f'state at "{path}" is a tensor of layout {value.layout}; only dense ones are possible'
            )
        name = str(value.dtype).removeprefix("torch.")
        if name not in ITEM_BYTES:
            raise ConfigError(
                f'state at "{path}" is a tensor of {name}; possible are {", ".join(ITEM_BYTES)}'
            )
        tensors.append(value)
        return ["t", name, list(value.shape)]
    if isinstance(value, Mapping):
        return [
            "d",
            [[_key(key, path), _encode(one, tensors, f"{path}.{key}")] for key, one in value.items()],
        ]
    if isinstance(value, (list, tuple)):
        kind = "l" if isinstance(value, list) else "u"
        return [kind, [_encode(one, tensors, f"{path}[{at}]") for at, one in enumerate(value)]]
    raise ConfigError(
        f'state at "{path}" is a {type(value).__name__}; possible are dict, list, tuple, None, bool, int, float, str '
        "and tensors"
    )


def _key(key: Any, path: str) -> Any:
    if not isinstance(key, (str, int)):
        raise ConfigError(
            f'state at "{path}" has a key of type {type(key).__name__}; possible are str and int'
        )
    return key


def _decode(node: Any, receive: Callable[[torch.Tensor], None], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} times")
    if not isinstance(node, list) or not node:
        raise ValueError("a node is no list")
    kind, *rest = node
    if kind == "v" and len(rest) == 1 and (rest[0] is None or isinstance(rest[0], (bool, int, str))):
        return rest[0]
    if kind == "f" and len(rest) == 1:
        return float.fromhex(rest[0])
    if kind == "t" and len(rest) == 2:
        return _tensor(rest[0], rest[1], receive)
    if kind in ("l", "u") and len(rest) == 1 and isinstance(rest[0], list):
        found = [_decode(one, receive, depth + 1) for one in rest[0]]
        return found if kind == "l" else tuple(found)
    if kind == "d" and len(rest) == 1 and isinstance(rest[0], list):
        return {_known_key(key): _decode(one, receive, depth + 1) for key, one in rest[0]}
    raise ValueError(f"a node is {str(node)[:50]}")


def _known_key(key: Any) -> Any:
    if not isinstance(key, (str, int)):
        raise ValueError(f"a key is {str(key)[:50]}")
    return key


def _tensor(dtype: Any, shape: Any, receive: Callable[[torch.Tensor], None]) -> torch.Tensor:
    if not isinstance(shape, list) or not all(type(one) is int and 0 <= one <= _MAX_ITEMS for one in shape):
        raise ValueError(f"a shape is {str(shape)[:50]}")
    if math.prod(shape) > _MAX_ITEMS:
        raise ValueError(f"a shape is {str(shape)[:50]}")
    if dtype not in ITEM_BYTES:
        raise ValueError(f"a dtype is {str(dtype)[:50]}")
    tensor = torch.empty(shape, dtype=torch_dtype(dtype), device="cpu")
    receive(tensor)
    return tensor
