"""Runs a model on some examples and takes the wanted tensors from it, where possible without its last modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..catcher import ModelIOCatcher
from ..codecs import TopKLogits, topk_logits
from ..configs import dtype_to_torch
from ..errors import GeneratorFailed
from .outputs import Source, Wanted

__all__ = ["Call", "Forward", "Made"]

#: Calls a model, given as a function that takes what the model takes, with fields of examples; returns what of its
#: result is wanted, or None if its forward ended early.
Call: TypeAlias = Callable[[Callable[..., Any], Mapping[str, Tensor]], Any]
#: A tensor with a batch axis, on the model's device, or the largest elements of one.
Made: TypeAlias = "Tensor | TopKLogits"
#: Logits of which the largest are chosen at a time: 256 MiB in float32.
_MAX_ELEMENTS = 1 << 26


class Forward:
    """Makes the wanted tensors of examples.

    Nothing is computed after the last module that is wanted. If no module is wanted, the model does not run.

    Args:
        model: Model in evaluation mode, on its device.
        call: Function that calls the model.
        wanted: Tensors that are made.
        device: Device of the model.
    """

    def __init__(self, model: nn.Module, call: Call, wanted: Sequence[Wanted], device: torch.device) -> None:
        self._catcher = ModelIOCatcher(model, None)
        self._call = call
        self._wanted = tuple(wanted)
        self._device = device

    def __call__(self, fields: Mapping[str, Tensor], layer: int | None = None) -> dict[str, Made]:
        """Return {name: what was made of it [n, ...]} on the model's device; fields stay where they are.

        Args:
            fields: Fields of n examples, on any device.
            layer: Layer that model_cfg names, for tensors of that layer.

        Raises:
            GeneratorFailed: the model does not call a module that is wanted, or a module has no tensor there.
        """
        sources = {one.name: one.source.at(layer) for one in self._wanted}
        with torch.inference_mode():
            found = {name: fields[one.path] for name, one in sources.items() if one.kind == "field"}
            found |= self._run(sources, fields)
            return {one.name: _reduced(one, found[one.name]) for one in self._wanted}

    def _run(self, sources: Mapping[str, Source], fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
        modules = {name: one for name, one in sources.items() if one.kind in ("inputs", "outputs")}
        results = [name for name, one in sources.items() if one.kind == "result"]
        if not modules and not results:
            return {}
        near = {name: field.to(self._device, non_blocking=True) for name, field in fields.items()}
        recording = self._catcher(
            inputs=_paths(modules, "inputs"), outputs=_paths(modules, "outputs"), early_exit=not results
        )
        with recording as captured:
            returned = self._call(self._catcher.run, near)
        found = {}
        for name, source in modules.items():
            calls = captured[source.path][source.kind] if source.path in captured else []
            if not calls:
                raise GeneratorFailed(f"{name}: the model does not call its module {source.path!r}")
            found[name] = _tensor_of(name, calls[0], is_input=source.kind == "inputs")
        for name in results:
            found[name] = _tensor_of(name, returned, is_input=False)
        return found


def _paths(modules: Mapping[str, Source], kind: str) -> list[str]:
    return sorted({one.path for one in modules.values() if one.kind == kind})


def _tensor_of(name: str, value: Any, *, is_input: bool) -> Tensor:
    """Return the tensor that a module took or returned: the only one, or the first.

    Raises:
        GeneratorFailed: there is none.
    """
    values = [*value["args"], *value["kwargs"].values()] if is_input else _items(value)
    for one in values:
        if isinstance(one, Tensor):
            return one
    raise GeneratorFailed(f"{name}: the module has no tensor there")


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else (value,)


def _reduced(wanted: Wanted, tensor: Tensor) -> Made:
    if wanted.dtype is not None:
        tensor = tensor.to(dtype_to_torch(wanted.dtype))
    return tensor if wanted.top_k is None else _top_k(tensor, wanted.top_k)


def _top_k(logits: Tensor, k: int) -> TopKLogits:
    """Return the largest logits, of some samples at a time: the sum of a row is computed in float32."""
    n_samples = max(1, _MAX_ELEMENTS // max(1, logits[0].numel()))
    parts = [topk_logits(some, k) for some in torch.split(logits, n_samples)]
    return TopKLogits(*(torch.cat(some) for some in zip(*parts, strict=True)))
