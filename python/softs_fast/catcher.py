"""Captures what named modules of a model take and return: the teacher's side of layer-by-layer distillation.

This module needs torch, which is why `softs_fast` does not import it.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

__all__ = ["ModelIOCatcher", "parse_io_spec", "transfer_to_device"]

Kind = Literal["inputs", "outputs"]
Captured = defaultdict[str, defaultdict[str, list[Any]]]

_SECTION = re.compile(r"(?P<kind>inputs|outputs)\[(?P<names>[^\]]*)\]")


def parse_io_spec(product_id: str) -> tuple[list[str], list[str]]:
    """Return the module names that a product id asks for, as `(inputs, outputs)`.

    A product id such as `inputs[model.layers.0]|outputs[model.layers.0|lm_head]` has at most one section of
    each kind. A missing section gives an empty list; of a repeated one the last counts. Names are separated by
    `|`; blanks around them and empty names are dropped. Text between sections is ignored.
    """
    names: dict[str, list[str]] = {"inputs": [], "outputs": []}
    for section in _SECTION.finditer(product_id):
        stripped = (name.strip() for name in section["names"].split("|"))
        names[section["kind"]] = [name for name in stripped if name]
    return names["inputs"], names["outputs"]


def transfer_to_device(obj: Any, device: torch.device | str | None) -> Any:
    """Return `obj` with every tensor in its dicts, lists and tuples moved to `device`.

    Anything else is kept as it is. A dict becomes a plain `dict`, a named tuple keeps its type. With
    `device=None`, `obj` itself is returned.
    """
    if device is None:
        return obj
    if isinstance(obj, torch.Tensor):
        target = torch.device(device)
        # An asynchronous copy to the host could be read before it has arrived.
        return obj.to(target, non_blocking=target.type != "cpu")
    if isinstance(obj, dict):
        return {key: transfer_to_device(value, device) for key, value in obj.items()}
    if isinstance(obj, list):
        return [transfer_to_device(value, device) for value in obj]
    if isinstance(obj, tuple):
        values = [transfer_to_device(value, device) for value in obj]
        return type(obj)(*values) if hasattr(obj, "_fields") else tuple(values)
    return obj


class ModelIOCatcher:
    """Records the inputs and outputs of chosen submodules while a model runs.

    Hooks are registered on every submodule by the constructor and record only inside a `with` block:

        catcher = ModelIOCatcher(model, torch.device("cuda"))
        with catcher(inputs=["layers.0"], outputs=["layers.5"]) as captured:
            for batch in loader:
                catcher.run(**batch)
        captured["layers.0"]["inputs"][0]["args"]   # positional arguments of the first forward
        captured["layers.5"]["outputs"][0]          # what layers.5 returned

    `captured[name]["inputs"]` is a list of `{"args": tuple, "kwargs": dict}`, `captured[name]["outputs"]` a
    list of return values, one entry per call of the module, in order. It stays valid after the block. Tensors are copies,
    which the model cannot change later, as `ReLU(inplace=True)` would; a copy is differentiable.

    With `early_exit=True` a forward ends as soon as each requested input and output was recorded once. It must
    then be started by `run`, which catches the internal exception that ends it. A module's output is recorded
    after those of its children.

    Args:
        model: The model; valid names are the keys of `dict(model.named_modules())`.
        device: Device that recorded tensors are moved to; None leaves them where they are.
        copies: Copy recorded tensors that need not be moved: one more read and write of each, 2 to 4 us for 8 KiB on a
            CPU. With False a recorded tensor is the model's own, and changes if a later module writes to it.
    """

    def __init__(self, model: nn.Module, device: torch.device | str | None, *, copies: bool = True) -> None:
        self.model = model
        self.device = device
        self.copies = copies
        self.named_modules: dict[str, nn.Module] = dict(model.named_modules())
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._armed: set[tuple[str, Kind]] = set()
        self._pending: set[tuple[str, Kind]] = set()
        self._early_exit = False
        self._captured = _new_capture()
        self.attach_hooks()

    def attach_hooks(self) -> None:
        """Register the hooks on all submodules; does nothing if they are registered already."""
        if self._hooks:
            return
        for name, module in self.named_modules.items():
            self._hooks.append(module.register_forward_pre_hook(self._input_hook(name), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._output_hook(name)))

    def detach_hooks(self) -> None:
        """Remove the hooks; nothing is recorded until `attach_hooks`."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __call__(
        self, inputs: Iterable[str] = (), outputs: Iterable[str] = (), early_exit: bool = False
    ) -> ModelIOCatcher:
        """Choose what the next `with` block records, and return self.

        Args:
            inputs: names of modules; their arguments are recorded.
            outputs: names of modules; their return values are recorded.
            early_exit: end each forward once all of them were recorded.

        Raises:
            KeyError: a name is not one of the model's modules.
        """
        armed: list[tuple[str, Kind]] = [(name, "inputs") for name in inputs]
        armed += [(name, "outputs") for name in outputs]
        unknown = [name for name, _ in armed if name not in self.named_modules]
        if unknown:
            raise KeyError(f"unknown module name(s) {unknown}; names must be keys of model.named_modules()")
        self._armed = set(armed)
        self._pending = set(armed)
        self._early_exit = early_exit
        self._captured = _new_capture()
        return self

    def for_product(self, product_id: str, early_exit: bool = True) -> ModelIOCatcher:
        """Choose what to record from a product id (see `parse_io_spec`), and return self.

        Raises:
            ValueError: the product id names no module.
            KeyError: a name is not one of the model's modules.
        """
        inputs, outputs = parse_io_spec(product_id)
        if not inputs and not outputs:
            raise ValueError(f"product_id {product_id!r} selects no modules")
        return self(inputs=inputs, outputs=outputs, early_exit=early_exit)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model and return its output, or None if the forward ended early."""
        self._pending = set(self._armed)
        try:
            return self.model(*args, **kwargs)
        except _ForwardCutShort:
            return None

    def __enter__(self) -> Captured:
        """Return what is being recorded, `captured[name][kind] -> list`."""
        return self._captured

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> Literal[False]:
        """Stop recording."""
        self._armed = set()
        return False

    def _input_hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if (name, "inputs") in self._armed:
                self._record(
                    name,
                    "inputs",
                    {"args": self._kept(args), "kwargs": self._kept(kwargs)},
                )

        return hook

    def _output_hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if (name, "outputs") in self._armed:
                self._record(name, "outputs", self._kept(output))

        return hook

    def _kept(self, value: Any) -> Any:
        """Return what is recorded of a value that the model has made."""
        moved = transfer_to_device(value, self.device)
        return _copied(moved, value) if self.copies else moved

    def _record(self, name: str, kind: Kind, value: Any) -> None:
        self._captured[name][kind].append(value)
        if self._early_exit:
            self._pending.discard((name, kind))
            if not self._pending:
                raise _ForwardCutShort


def _copied(moved: Any, value: Any) -> Any:
    """Return what `transfer_to_device` made of a value, with a copy of each tensor that was not moved."""
    if isinstance(moved, torch.Tensor):
        return moved.clone() if moved is value else moved
    if isinstance(moved, dict):
        # Of the same type: what a model returns may have attributes.
        copied = copy.copy(moved)
        for key, item in moved.items():
            copied[key] = _copied(item, value[key])
        return copied
    if isinstance(moved, list):
        return [_copied(item, before) for item, before in zip(moved, value, strict=True)]
    if isinstance(moved, tuple):
        items = [_copied(item, before) for item, before in zip(moved, value, strict=True)]
        return type(moved)(*items) if hasattr(moved, "_fields") else tuple(items)
    return moved


class _ForwardCutShort(Exception):
    """Everything requested was recorded; `ModelIOCatcher.run` catches it."""


def _new_capture() -> Captured:
    return defaultdict(lambda: defaultdict(list))
