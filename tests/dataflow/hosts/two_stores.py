"""Stores that believe themselves on different hosts, so that they reach each other over TCP alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from softs_fast.dataflow.control import new_token
from softs_fast.dataflow.moves import DataManager, HostLinks, segments
from softs_fast.dataflow.moves.places import ITEM_BYTES
from softs_fast.dataflow.values import Value

TOKEN = new_token()
DTYPES = [name for name in ITEM_BYTES if hasattr(torch, name)]


@contextmanager
def store_on(
    host: str, worker: int, *, max_bytes: int = 1 << 22, token: str = TOKEN, stall_s: float = 30.0
) -> Iterator[DataManager]:
    """A store of a worker on a host of that name."""
    links = HostLinks(token, stall_s=stall_s)
    with mock.patch.object(segments, "boot_id", return_value=host):
        store = DataManager(worker, max_bytes=max_bytes, links=links)
    with store:
        yield store


def same(value: Value, other: Value) -> bool:
    """Whether two values have the same type, dtype, shape and bits."""
    if isinstance(value, list):
        return isinstance(other, list) and len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, Tensor):
        return (
            isinstance(other, Tensor)
            and (value.dtype, value.shape) == (other.dtype, other.shape)
            and torch.equal(value.flatten().view(torch.uint8), other.flatten().view(torch.uint8))
        )
    if isinstance(value, float):
        return isinstance(other, float) and value.hex() == other.hex()
    return type(value) is type(other) and value == other
