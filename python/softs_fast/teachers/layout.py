"""The layout of a teacher's samples, found without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from ..configs import BatchConfig, TensorSpec, torch_dtype_to_str
from ..errors import ConfigError, GeneratorFailed
from .forward import Made
from .outputs import Output, Wanted

__all__ = ["MetaRun", "layout_of"]

#: Makes tensors of one example on the meta device: they have a shape and a dtype, and no elements.
MetaRun: TypeAlias = Callable[[Sequence[Wanted]], Mapping[str, Made]]


def layout_of(outputs: Mapping[str, Output], wanted: Sequence[Wanted], run: MetaRun) -> BatchConfig:
    """Return the layout of samples.

    Args:
        outputs: Outputs by name, as users give them.
        wanted: The same outputs, found in the model.
        run: Function called once, unless all outputs have a shape and a dtype of their own.

    Raises:
        ConfigError: the model cannot run, does not call a module, or a codec does not take such a tensor, for example
            because k is larger than the vocabulary.
    """
    open_ones = [one for one in wanted if outputs[one.name].shape is None or one.dtype is None]
    made = _made([replace(one, top_k=None) for one in open_ones], run) if open_ones else {}
    specs = []
    for one in wanted:
        output, tensor = outputs[one.name], made.get(one.name)
        if isinstance(tensor, Tensor):
            shape, dtype = tuple(tensor.shape[1:]), torch_dtype_to_str(tensor.dtype)
        else:
            assert output.shape is not None
            assert output.dtype is not None
            shape, dtype = tuple(output.shape), output.dtype
        specs.append(TensorSpec(one.name, shape, dtype, codec=output.codec))
    return BatchConfig(specs)


def _made(wanted: Sequence[Wanted], run: MetaRun) -> Mapping[str, Made]:
    try:
        return run(wanted)
    except (ConfigError, GeneratorFailed) as error:
        raise ConfigError(str(error)) from error
    except Exception as error:
        raise ConfigError(
            f"shapes cannot be found: the model does not run without weights, on torch's meta device: {error}; give "
            "each output its shape and dtype: Output(source, shape=..., dtype=...)"
        ) from error
