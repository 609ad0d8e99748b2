"""Models and tokenizers of Hugging Face: what can be read without weights, and the weights."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from ..configs import dtype_to_torch
from ..errors import ConfigError

__all__ = ["Pretrained", "layers_of"]


@dataclass(frozen=True)
class Pretrained:
    """A model by its name on Hugging Face, or by its folder.

    Args:
        name: a folder is known by its absolute path, as workers may run elsewhere.
        auto: the class of transformers that chooses the model's class.

    Raises:
        ConfigError: the name is the path of a folder that is not there.
    """

    name: str
    auto: Literal["AutoModel", "AutoModelForCausalLM"]

    def __post_init__(self) -> None:
        """Tell names from folders."""
        if not isinstance(self.name, str | os.PathLike) or not os.fspath(self.name):
            raise ConfigError(f"model must be a name or a folder, got {self.name!r}")
        name = os.path.expanduser(os.fspath(self.name))
        if os.path.isdir(name):
            name = os.path.abspath(name)
        elif os.path.isabs(name) or name.startswith(".") or name.count("/") > 1:
            raise ConfigError(f"model {name!r}: there is no such folder")
        object.__setattr__(self, "name", name)

    def config(self) -> Any:
        """Read the configuration. Raises ConfigError if there is none."""
        with self._reading("configuration"):
            return _transformers().AutoConfig.from_pretrained(self.name, **self._where)

    def tokenizer(self) -> Any:
        """Read the tokenizer. Raises ConfigError if there is none."""
        with self._reading("tokenizer"):
            return _transformers().AutoTokenizer.from_pretrained(self.name, **self._where)

    def skeleton(self, config: Any, dtype: str) -> nn.Module:
        """Return the model on the meta device, without weights. Raises ConfigError if there is no such class."""
        with self._reading("architecture"), torch.device("meta"):
            auto = getattr(_transformers(), self.auto)
            # Other implementations of attention look at elements of the mask, which are not there.
            model = auto.from_config(config, dtype=dtype_to_torch(dtype), attn_implementation="eager")
        return _for_inference(model)

    def weights(self, dtype: str, device: torch.device) -> nn.Module:
        """Load the model. Raises ConfigError if there are no weights."""
        with self._reading("weights"), _without_bars():
            auto = getattr(_transformers(), self.auto)
            model = auto.from_pretrained(self.name, dtype=dtype_to_torch(dtype), **self._where)
        return _for_inference(model.to(device))

    @property
    def _where(self) -> dict[str, bool]:
        return {"local_files_only": os.path.isabs(self.name)}

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"model {self.name!r}: no {what} that {self.auto} can read: {_first_line(error)}; give the name of a "
                "model on Hugging Face, or a folder that save_pretrained has written"
            ) from error


def layers_of(model: nn.Module, n_layers: int) -> list[str]:
    """Return the paths of the lists of so many layers; lists in layers do not count."""
    found: list[str] = []
    for path, module in model.named_modules():
        is_inner = any(path.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == n_layers and not is_inner:
            found.append(path)
    return found


def _for_inference(model: nn.Module) -> nn.Module:
    config: Any = model.config
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return model.eval()


def _transformers() -> Any:
    # By name, because its types are no part of this package's.
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            "models of Hugging Face need transformers: pip install 'softs-fast[transformers]'"
        ) from error


@contextlib.contextmanager
def _without_bars() -> Iterator[None]:
    """Let transformers draw no progress bars, which would be lines of a worker's output."""
    logging = _transformers().utils.logging
    was_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
