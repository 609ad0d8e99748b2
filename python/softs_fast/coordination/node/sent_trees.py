"""Encoded trees between ranks, and the number by which trees that have to be equal are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...collectives import Strategy
from ...errors import ConfigError, WireError
from .state_tree import MAX_TREE_BYTES, decode_tree

__all__ = ["MAX_REFUSAL_BYTES", "digest", "receive_tree", "send_tree"]

#: Longest text of a refusal.
MAX_REFUSAL_BYTES = 2000
# Numbers of 64 bits in a row of a digest.
_ROW = 1024


def send_tree(
    strategy: Strategy, text: bytes, tensors: Mapping[str, torch.Tensor], *, is_refusal: bool = False
) -> None:
    """Send an encoded tree to all ranks that `receive_tree`.

    Args:
        strategy: Strategy of this rank and of those that receive.
        text: JSON of the tree; or, as a refusal, why there is none.
        tensors: Tensors of the tree.
        is_refusal: Whether the text is a refusal.

    Raises:
        PeerLost: A rank was lost.
    """
    source = strategy.rank
    # A refusal is announced by a negative length.
    strategy.broadcast_tensor(torch.tensor([-len(text) if is_refusal else len(text)], device="cpu"), source)
    strategy.broadcast_tensor(torch.frombuffer(bytearray(text), dtype=torch.uint8), source)
    for tensor in tensors.values():
        if tensor.numel():
            strategy.broadcast_tensor(_bytes_of(tensor), source)


def receive_tree(strategy: Strategy, source: int, kept: Mapping[str, torch.Tensor] | None = None) -> Any:
    """Return the tree of a rank that calls `send_tree`.

    Args:
        strategy: Strategy of this rank, the source, and others that receive.
        source: Rank of the source.
        kept: Tensors that this rank has already, by their places in the tree.

    Raises:
        PeerLost: A rank was lost.
        WireError: The tree is malformed.
        ConfigError: The source has sent a refusal; the text says why.
    """
    length = torch.zeros(1, dtype=torch.int64, device="cpu")
    strategy.broadcast_tensor(length, source)
    n_bytes = abs(int(length))
    if not 0 < n_bytes <= MAX_TREE_BYTES:
        raise WireError(f"the source announces a state of {n_bytes} bytes; at most {MAX_TREE_BYTES}")
    tree = torch.empty(n_bytes, dtype=torch.uint8, device="cpu")
    strategy.broadcast_tensor(tree, source)
    text = tree.numpy().tobytes()
    if int(length) < 0:
        said = text[:MAX_REFUSAL_BYTES].decode(errors="replace")
        raise ConfigError(f"rank {source} cannot send its state: {said}")

    def receive(tensor: torch.Tensor) -> None:
        if tensor.numel():
            strategy.broadcast_tensor(_bytes_of(tensor), source)

    return decode_tree(text, receive, kept)


def digest(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return a number below 2**62 by which tensors that have to be equal differ if they are not.

    Each place of a row of 8 KiB is summed, at the speed of memory, and the sums are hashed: tensors differ unnoticed if all
    their differences cancel out in each of these sums.

    Args:
        tensors: Tensors by name, in any order.
    """
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(tensors.items()):
        data = _bytes_of(tensor).numpy()
        whole = data.size // (8 * _ROW) * 8 * _ROW
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(data[:whole].view(np.int64).reshape(-1, _ROW).sum(axis=0, dtype=np.int64).tobytes())
        found.update(data[whole:].tobytes())
    return int.from_bytes(found.digest()) >> 2


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor as bytes of host memory; of a plain one, its own."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8)
