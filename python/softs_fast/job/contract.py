"""What a rank trains, as short texts by name, so that the coordinator refuses one that differs before it trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch.nn.parameter import is_lazy

from ..configs import BatchConfig, TensorSpec
from ..errors import ConfigError
from .peers import Peers
from .position import Position

__all__ = ["check_ranks", "contract_of"]

# Tensors with a term of their own, and the longest of these; others are known by the digest of all.
_MOST_TENSORS, _MOST_TEXT = 48, 200


def contract_of(position: Position, config: BatchConfig, model: torch.nn.Module | None) -> dict[str, str]:
    """Return what must be equal on all ranks: sizes, product, seed, the tensors of a sample and those of the model, if known.

    Values of the weights are no part of it: a rank copies those of the others.
    """
    weights = {
        name: f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
        for name, one in ({} if model is None else model.state_dict()).items()
        if isinstance(one, torch.Tensor) and not is_lazy(one)
    }
    return {
        **{name: str(value) for name, value in position.contract().items()},
        # Their order is that of their bytes in a slot, in which they have no names.
        **_terms("sample", {spec.name: f"{_text(spec)}, place {i}" for i, spec in enumerate(config.specs)}),
        **_terms("model", weights),
    }


def check_ranks(peers: Peers, contract: dict[str, str], n_micro_batches: int) -> None:
    """Check that ranks that begin together can train together; a call of all ranks.

    Raises:
        ConfigError: Contracts differ; the text names the first difference. Or ranks would have unequal shares.
    """
    first = json.loads(peers.of_first(json.dumps(contract)))
    differing = [name for name in sorted({**first, **contract}) if first.get(name) != contract.get(name)]
    refusals = [
        ConfigError(
            f"ranks train different things: this rank has {name}={contract.get(name)!r}, and rank 0 {first.get(name)!r}; start "
            "the same script on all ranks"
        )
        for name in differing[:1]
    ]
    peers.agree(refusals[0] if refusals else None)
    if n_micro_batches % peers.size:
        sizes = [size for size in range(1, n_micro_batches + 1) if n_micro_batches % size == 0]
        raise ConfigError(
            f"{peers.size} ranks of torch.distributed cannot share out {n_micro_batches} micro-batches equally, and their "
            f"model takes the mean over ranks: start one of {sizes} ranks"
        )


def _text(spec: TensorSpec) -> str:
    codec = "" if spec.codec is None else f" {spec.codec}"
    return f"{spec.dtype} {list(spec.shape)}{codec}{' ragged' if spec.ragged else ''}"


def _terms(what: str, tensors: Mapping[str, str]) -> dict[str, str]:
    """Return terms of the first tensors by name, and one of all of them, which is last in the order of names."""
    ordered = sorted(tensors.items())
    short = [(f"{what} {name}", text) for name, text in ordered if len(name) + len(text) <= _MOST_TEXT]
    digest = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]
    return {**dict(short[:_MOST_TENSORS]), f"{what}: all": f"{len(ordered)} tensors, SHA-256 {digest}"}
