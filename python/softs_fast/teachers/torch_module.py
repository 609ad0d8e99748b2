"""The teacher around any module of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..configs import dtype_to_torch
from ..errors import ConfigError
from .arguments import check_picklable, unknown, whole
from .data import StackedData, check_data, fields_of_element
from .forward import Forward, Made
from .layout import layout_of
from .order import Order
from .outputs import Source, Wanted, as_outputs, parse_path, wanted
from .placement import device_here, device_named, dtype_named
from .sample_maker import SampleMaker
from .teacher import Teacher

__all__ = ["TorchTeacher"]


class TorchTeacher(Teacher):
    """Any module of torch that makes samples of the elements of a collection.

        teacher = TorchTeacher(make_model, dataset, {"x": Output("0"), "logits": Output("output", "topk:5")})

    An element is a tensor, array or number, called `input`, a tuple of them, called `0`, `1`, ..., or a mapping of them
    with names of its own. The order is that of `CausalLMTeacher`. Outputs are these names, `output`, which is the first
    tensor that the module returns, and `inputs[PATH]` and `outputs[PATH]`, the first tensor that a submodule takes or
    returns. Without `output` a forward ends after the last submodule that is wanted.

    Shapes are found on torch's meta device, where tensors have no elements: the constructor calls `make_model` there.

    Args:
        make_model: Function that returns the module; other processes must be able to import it. `worker` and
            `supplier` call it.
        data: A torch dataset, a tensor, a list: anything with a length and elements of one shape.
        outputs: Names, or {name of a tensor: codec, None, or `Output`}.
        model_inputs: Names of what the module takes; default: all of a mapping, by keyword, or the first of a tuple.
        seed: Seed of the order of the data.
        repeat: Whether another pass begins when all data were used, as for `CausalLMTeacher`.
        dtype: Dtype to which the module, and the floats that it takes, are cast; default: they are not.
        device: Device of the module, as for `CausalLMTeacher`.
        max_rows: Elements that go through the module at once.

    Raises:
        ConfigError: an argument is malformed, or does not fit the module; the text says what to give.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        data: Any,
        outputs: Mapping[str, Any] | Sequence[str] | str,
        *,
        model_inputs: Sequence[str] | None = None,
        seed: int = 0,
        repeat: bool = True,
        dtype: str | torch.dtype | None = None,
        device: str | torch.device | None = None,
        max_rows: int = 64,
    ) -> None:
        check_picklable(
            make_model, "make_model", "give a function of a module, or a functools.partial of one"
        )
        check_data(data)
        self._make_model = make_model
        self._data = data
        self._order = Order(whole("seed", seed, 0), repeat)
        self._dtype = dtype_named(dtype)
        self._device = device_named(device)
        self._max_rows = whole("max_rows", max_rows, 1)
        element = data[0]
        fields = fields_of_element(element)
        self._by_keyword = isinstance(element, Mapping)
        default = [*fields] if self._by_keyword else [*fields][:1]
        self._model_inputs = tuple(default if model_inputs is None else model_inputs)
        for name in self._model_inputs:
            if name not in fields:
                raise unknown("name in model_inputs", name, fields)
        chosen = as_outputs(outputs)
        self._wanted = tuple(
            wanted(name, output, _source_of(output.source, fields)) for name, output in chosen.items()
        )
        self.batch_config = layout_of(chosen, self._wanted, lambda some: self._on_meta(fields, some))

    def _load(self) -> SampleMaker:
        device = device_here(self._device)
        model = self._module(device)
        return SampleMaker(
            Forward(model, self._call, self._wanted, device),
            {"": StackedData(self._data)},
            self._order,
            max_rows=self._max_rows,
            n_layers=None,
            device=device,
        )

    def _on_meta(self, fields: Mapping[str, Tensor], some: Sequence[Wanted]) -> Mapping[str, Made]:
        device = torch.device("meta")
        with device:
            model = self._module(device)
        rows = {name: field.unsqueeze(0).to(device) for name, field in fields.items()}
        return Forward(model, self._call, some, device)(rows)

    def _module(self, device: torch.device) -> nn.Module:
        model = self._make_model()
        if not isinstance(model, nn.Module):
            raise ConfigError(f"make_model returned {type(model).__name__}; it must return a torch.nn.Module")
        _check_paths(model, self._wanted)
        return model.to(device, None if self._dtype is None else dtype_to_torch(self._dtype)).eval()

    def _call(self, run: Callable[..., Any], fields: Mapping[str, Tensor]) -> Any:
        values = {name: self._cast(fields[name]) for name in self._model_inputs}
        return run(**values) if self._by_keyword else run(*values.values())

    def _cast(self, field: Tensor) -> Tensor:
        if self._dtype is None or not field.is_floating_point():
            return field
        return field.to(dtype_to_torch(self._dtype))


def _source_of(name: str, fields: Mapping[str, Tensor]) -> Source:
    source = parse_path(name)
    if source is not None:
        return source
    if name == "output":
        return Source("result")
    if name not in fields:
        raise unknown("output", name, [*fields, "output", "inputs[PATH]", "outputs[PATH]"])
    return Source("field", name)


def _check_paths(model: nn.Module, some: Sequence[Wanted]) -> None:
    paths = [path for path, _ in model.named_modules() if path]
    for one in some:
        if one.source.kind in ("inputs", "outputs") and one.source.path not in paths:
            raise unknown(f"module in {one.source.kind}[PATH]:", one.source.path, paths)
