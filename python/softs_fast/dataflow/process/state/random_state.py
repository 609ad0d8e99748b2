"""The state of generators of random numbers: those of the process, and those that an object has."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...declare.attributes import attributes_of

__all__ = ["generators_of", "process_state", "restore_generators", "restore_process"]


def process_state() -> dict[str, Any]:
    """Return the state of the generators of torch, numpy and Python in this process, as plain values and tensors."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, following = random.getstate()
    is_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if is_cuda else [],
        "numpy": [[int(key) for key in keys], position, has_gauss, gauss],
        "python": [version, list(words), following],
    }


def restore_process(state: Mapping[str, Any]) -> None:
    """Have the generators of this process go on from a state."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, words, following = state["python"]
    random.setstate((version, tuple(words), following))


def generators_of(owner: object) -> dict[str, Any]:
    """Return the states of all generators that are attributes of an object, by the names of these."""
    found = {name: _state_of(value) for name, value in attributes_of(owner)}
    return {name: state for name, state in found.items() if state is not None}


def restore_generators(owner: object, states: Mapping[str, Any]) -> None:
    """Have generators that are attributes of an object go on; those that it has no more are left out."""
    own = dict(attributes_of(owner))
    for name, state in states.items():
        value = own.get(name)
        if isinstance(value, torch.Generator):
            value.set_state(state)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = _with_arrays(state)
        elif isinstance(value, np.random.RandomState):
            value.set_state(_with_arrays(state))
        elif isinstance(value, random.Random):
            version, words, following = state
            value.setstate((version, tuple(words), following))


def _state_of(value: object) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return _without_arrays(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _without_arrays(value.get_state(legacy=False))
    if type(value) is random.Random:
        version, words, following = value.getstate()
        return [version, list(words), following]
    return None


def _without_arrays(value: Any) -> Any:
    """Arrays of numpy become dicts: a file with classes is not loaded."""
    if isinstance(value, dict):
        return {name: _without_arrays(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return {"array": [int(one) for one in value], "dtype": str(value.dtype)}
    return value


def _with_arrays(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"array", "dtype"}:
        return np.array(value["array"], dtype=value["dtype"])
    if isinstance(value, dict):
        return {name: _with_arrays(one) for name, one in value.items()}
    return value
