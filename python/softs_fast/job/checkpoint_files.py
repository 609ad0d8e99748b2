"""The files of one checkpoint: facts in JSON, the state in the format of safetensors, and the manifest of both.

Nothing in them is unpickled. Weights can be read without this package, as `safetensors.torch.load_file` does: each tensor
has the name of its place in the state, such as ``model.layer.weight``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ..coordination.node import TrainingState
from ..durable import write_manifest
from ..errors import ConfigError, DamagedError
from ..tensors import FILE_DTYPES, file_header

__all__ = ["load_state", "read_facts", "write_facts", "write_state"]

_FACTS, _STATE = "checkpoint.json", "state.safetensors"
_FORMAT = 1


def write_state(folder: Path, text: bytes, tensors: dict[str, torch.Tensor]) -> None:
    """Write a state into the folder of a checkpoint.

    Args:
        folder: Folder of the checkpoint, which has no state.
        text: JSON of the state, of `TrainingState.snapshot`.
        tensors: Tensors of the state.

    Raises:
        OSError: It cannot be written.
    """
    described = []
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        # A tensor of a dtype that the format lacks is stored as its bytes.
        is_named = dtype in FILE_DTYPES
        shape = tensor.shape if is_named else (tensor.nbytes,)
        described.append((name, dtype if is_named else "uint8", shape, tensor.nbytes))
    head = file_header(described, {"tree": text.decode()})
    with open(folder / _STATE, "xb") as file:
        file.write(head)
        for tensor in tensors.values():
            if tensor.numel():
                file.write(_memory_of(tensor))


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write what people, and a job that is to load it, want to know of a checkpoint; and last the manifest of its files.

    `CheckpointFolder.seal` makes all of it durable.

    Raises:
        ConfigError: Something in the folder is neither a plain file nor a folder.
        OSError: It cannot be written.
    """
    (folder / _FACTS).write_text(json.dumps({"format": _FORMAT, **facts}, indent=1))
    write_manifest(folder)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of a checkpoint.

    Raises:
        ConfigError: It is of another version.
        OSError: They cannot be read.
        ValueError, KeyError: They are damaged.
    """
    facts = json.loads((folder / _FACTS).read_text())
    if not isinstance(facts, dict):
        raise ValueError(f"{_FACTS} is no JSON object")
    if facts["format"] != _FORMAT:
        raise ConfigError(
            f"checkpoint {folder} has format {facts['format']}, expected {_FORMAT}: it is of another version of softs-fast; use "
            "that version, or another folder"
        )
    return facts


def load_state(folder: Path, state: TrainingState) -> None:
    """Load a verified checkpoint into a state.

    Raises:
        ConfigError: It does not fit; the state is undefined then.
        OSError: It cannot be read.
    """
    with open(folder / _STATE, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))

        def receive(tensor: torch.Tensor) -> None:
            if tensor.numel() and file.readinto(_memory_of(tensor)) != tensor.nbytes:
                raise DamagedError(f"checkpoint {folder} ends before its last tensor; use an older one")

        state.load_snapshot(header["__metadata__"]["tree"].encode(), receive)


def _memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor in host memory."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
