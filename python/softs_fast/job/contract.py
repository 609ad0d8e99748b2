"""What a rank trains, as short texts by name, so that the coordinator refuses one that differs before it trains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from torch.nn.parameter import is_lazy

from ..configs import BatchConfig, TensorSpec
from ..coordination.node import TrainingState
from .position import Position

__all__ = ["contract_of"]

# Tensors with a term of their own, and the longest of these; others are known by the digest of all.
_MOST_TENSORS, _MOST_TEXT = 48, 200


def contract_of(position: Position, config: BatchConfig, state: TrainingState) -> dict[str, str]:
    """Return what must be equal on all ranks: sizes, product, seed, the tensors of a sample and those of the model.

    Values of the weights are no part of it: a rank copies those of the others.
    """
    model = {
        name: f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
        for name, one in state.model.state_dict().items()
        if isinstance(one, torch.Tensor) and not is_lazy(one)
    }
    return {
        **{name: str(value) for name, value in position.contract().items()},
        # Their order is that of their bytes in a slot, in which they have no names.
        **_terms("sample", {spec.name: f"{_text(spec)}, place {i}" for i, spec in enumerate(config.specs)}),
        **_terms("model", model),
    }


def _text(spec: TensorSpec) -> str:
    codec = "" if spec.codec is None else f" {spec.codec}"
    return f"{spec.dtype} {list(spec.shape)}{codec}{' ragged' if spec.ragged else ''}"


def _terms(what: str, tensors: Mapping[str, str]) -> dict[str, str]:
    """Return terms of the first tensors by name, and one of all of them, which is last in the order of names."""
    ordered = sorted(tensors.items())
    short = [(f"{what} {name}", text) for name, text in ordered if len(name) + len(text) <= _MOST_TEXT]
    digest = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]
    return {**dict(short[:_MOST_TENSORS]), f"{what}: all": f"{len(ordered)} tensors, SHA-256 {digest}"}
