"""What all ranks of a job have in common, as texts, so that one that differs can be refused by name before it trains."""

from __future__ import annotations

import hashlib

from ..configs import BatchConfig
from ..coordination.node import TrainingState
from .position import Position

__all__ = ["contract_of", "text_of_config"]

# Longest text that is kept as it is.
_MOST = 400


def contract_of(position: Position, state: TrainingState) -> dict[str, str]:
    """Return names and values of what a rank has in common with the others.

    Random numbers of weights are no part of it: a rank copies those of the others.
    """
    parameters = [
        f"{name} {str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
        for name, one in state.model.named_parameters()
    ]
    return {
        **{name: str(value) for name, value in position.contract().items()},
        "model": _brief("; ".join(parameters)),
        "optimizer": type(state.optimizer).__name__,
    }


def text_of_config(config: BatchConfig) -> str:
    """Return the tensors of a sample as text."""
    return _brief("; ".join(map(str, config.specs)))


def _brief(text: str) -> str:
    """Return a text, or the begin and a digest of one that is long."""
    if len(text) <= _MOST:
        return text
    return f"{text[:_MOST]}... ({len(text):,} characters, {hashlib.sha256(text.encode()).hexdigest()[:16]})"
