"""Which tensors a teacher sends to its student, and where in the model each of them is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..codecs import TopK, as_codec
from ..configs import dtype_to_torch
from ..errors import ConfigError

__all__ = ["Output", "Source", "Wanted", "as_outputs", "parse_path", "wanted"]

_PATH = re.compile(r"(?P<kind>inputs|outputs)\[(?P<path>[^\]]*)\]")


@dataclass(frozen=True)
class Output:
    """One tensor of a sample, with a name of the user's own or with another dtype.

    Args:
        source: Name by which the teacher knows the tensor: `"logits"`, `"hidden.3"`, `"outputs[lm_head]"`.
        codec: How the tensor is stored, see `softs_fast.codecs`. `TopK` is computed on the model's device.
        dtype: Dtype to which the tensor is cast on the model's device; default: the dtype that the model computes.
        shape: Shape of the tensor of one sample. Only needed, with dtype, for a model that cannot run on torch's meta
            device, where shapes are found without weights.
    """

    source: str
    codec: Any = None
    dtype: str | None = None
    shape: Sequence[int] | None = None


@dataclass(frozen=True)
class Source:
    """Where a tensor is while a model runs.

    Attributes:
        kind: a field of the examples, what the model returns, or what a module takes or returns.
        path: name of the field or path of the module; "" for what the model returns.
        of_layer: the module is the element of the list at `path` that the student's model_cfg names.
    """

    kind: Literal["field", "result", "inputs", "outputs"]
    path: str = ""
    of_layer: bool = False

    def at(self, layer: int | None) -> Source:
        """Return the source with the layer of a generation."""
        return replace(self, path=f"{self.path}.{layer}", of_layer=False) if self.of_layer else self


@dataclass(frozen=True)
class Wanted:
    """A tensor of a sample as a teacher makes it.

    Attributes:
        name: Name of the tensor in a sample.
        source: Place at which the tensor is found while the model runs.
        dtype: Dtype to which the tensor is cast; None: it is not cast.
        top_k: Number of the largest elements that are kept of each row; None: all.
    """

    name: str
    source: Source
    dtype: str | None
    top_k: int | None


def as_outputs(outputs: object) -> dict[str, Output]:
    """Return the outputs that a user gives, by the name of their tensor.

    Args:
        outputs: a source, several sources, or a mapping {name of the tensor: `Output`, or codec or None where the name
            is the source}.

    Raises:
        ConfigError: it is none of these, or empty; a codec or dtype is unknown; a shape has no dtype.
    """
    if isinstance(outputs, str):
        outputs = (outputs,)
    if isinstance(outputs, Mapping):
        found = {
            name: output if isinstance(output, Output) else Output(name, output)
            for name, output in outputs.items()
        }
    elif isinstance(outputs, Sequence) and all(isinstance(name, str) for name in outputs):
        found = {name: Output(name) for name in outputs}
    else:
        raise ConfigError(
            f"outputs must be names, or a mapping of names to codecs or Output, got {outputs!r}"
        )
    if not found:
        raise ConfigError("outputs are empty; name at least one")
    for name, output in found.items():
        try:
            as_codec(output.codec)
        except ConfigError as error:
            raise ConfigError(
                f"output {name!r}: {error}; what is found under another name is given as Output(source)"
            ) from error
        if output.shape is not None and output.dtype is None:
            raise ConfigError(f"output {output.source!r} has a shape and no dtype; give both, or none")
        if output.dtype is not None:
            dtype_to_torch(output.dtype)
    return found


def parse_path(name: str) -> Source | None:
    """Return the source that `inputs[PATH]` or `outputs[PATH]` names; None for any other name."""
    match = _PATH.fullmatch(name)
    if match is None:
        return None
    return Source("inputs" if match["kind"] == "inputs" else "outputs", match["path"].strip())


def wanted(name: str, output: Output, source: Source) -> Wanted:
    """Return the tensor that an output becomes."""
    codec = as_codec(output.codec)
    return Wanted(name, source, output.dtype, codec.k if isinstance(codec, TopK) else None)
