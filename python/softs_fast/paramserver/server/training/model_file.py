"""Files of trained weights, which are whole and unaltered, or refused."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....durable import write_file
from ....errors import ConfigError, DamagedError, SoftsError
from ...wire.tensors import to_bytes

if TYPE_CHECKING:
    from torch import nn

__all__ = ["read_model", "write_model"]

#: Where the metadata of a safetensors file have the digest of its tensors. A file of torch has a CRC-32 of each part.
_DIGEST = "softs_fast_sha256"


def write_model(path: Path, module: nn.Module) -> None:
    """Write the weights of a module: a state dict by `torch.save`, or of safetensors if the suffix is .safetensors.

    Raises:
        OSError: the file cannot be written.
        ConfigError: the package safetensors is not installed.
    """
    state = {name: one.detach().contiguous() for name, one in module.state_dict().items()}
    if path.suffix != ".safetensors":
        write_file(path, lambda file: torch.save(state, file))
        return
    # Tensors that share memory are refused.
    state = {name: one.clone() for name, one in state.items()}
    write_file(path, _safetensors().save(state, {_DIGEST: _digest_of(state)}))


def read_model(path: Path) -> dict[str, Tensor]:
    """Read a file of weights, with or without what `write_model` notes of it.

    Raises:
        ConfigError: It cannot be read, or is no file of weights.
        DamagedError: It was altered.
    """
    try:
        data = path.read_bytes()
        if path.suffix == ".safetensors":
            return _read_safetensors(path, data)
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as parts:
                altered = parts.testzip()
            if altered is not None:
                raise DamagedError(f"{path} is damaged: {altered} was altered; restore a copy")
        found: dict[str, Tensor] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return found
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except SoftsError:
        raise
    except (zipfile.BadZipFile, zlib.error, ValueError, LookupError) as error:
        raise DamagedError(f"{path} is damaged: {error}; restore a copy") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ConfigError(
            f"{path} is no file of weights: {(str(error) or repr(error)).splitlines()[0]}"
        ) from None


def _read_safetensors(path: Path, data: bytes) -> dict[str, Tensor]:
    load = _safetensors()
    import safetensors

    try:
        state: dict[str, Tensor] = load.load(data)
        with safetensors.safe_open(path, "pt") as opened:
            metadata = opened.metadata() or {}
    except safetensors.SafetensorError as error:
        raise DamagedError(f"{path} is damaged, or no file of safetensors: {error}; restore a copy") from None
    if _DIGEST in metadata and metadata[_DIGEST] != _digest_of(state):
        raise DamagedError(f"{path} is damaged: its tensors were altered; restore a copy")
    return state


def _digest_of(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, one in sorted(state.items()):
        digest.update(f"{name} {one.dtype} {list(one.shape)}\n".encode())
        digest.update(to_bytes(one))
    return digest.hexdigest()


def _safetensors() -> Any:
    try:
        from safetensors import torch as safetensors_torch
    except ImportError as error:
        raise ConfigError(
            f"a file of safetensors needs the package: {error}; pip install safetensors"
        ) from None
    return safetensors_torch
