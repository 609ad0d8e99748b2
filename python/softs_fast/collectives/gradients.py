"""Gradients as `all_reduce_gradients` takes them: in the order of their names, described so that ranks can compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from softs_fast.collectives.strategy import ReduceOp
from softs_fast.collectives.tensors import DTYPE_CODES, describe, op_code
from softs_fast.errors import ConfigError
from softs_fast.tensors import local_tensor, mark_written, shard_of

__all__ = ["Gradients", "joined"]

_NONE = "no gradient"


@contextmanager
def joined(tensors: Sequence[torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Yield tensors of one dtype as one flat tensor on a device; what becomes of it is copied back at the end.

    Nothing is copied back if the block raises.
    """
    flat = torch.cat([tensor.detach().reshape(-1).to(device) for tensor in tensors])
    yield flat
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


@dataclass(frozen=True)
class Gradients:
    """The gradients of one rank, in the order of their names.

    A rank must not raise before it has compared its call with those of the others: they would wait for it. So an
    unsuitable tensor is part of the description, and `raise_if_refused` follows the comparison.

    Attributes:
        tensors: Those that are reduced, by name.
        manifest: Descriptions of all, by name, for the comparison. A rank with a tensor and one without have different
            ones, and so have a rank with a suitable tensor and one with an unsuitable one.
        refusal: Error about the first unsuitable tensor; None if all are suitable.
    """

    tensors: dict[str, torch.Tensor]
    manifest: dict[str, str]
    refusal: ConfigError | None

    @classmethod
    def of(
        cls,
        gradients: Mapping[str, torch.Tensor | None],
        op: ReduceOp | str,
        check: Callable[[str, torch.Tensor], None] | None = None,
    ) -> Gradients:
        """Return the gradients of a mapping; None stands for a parameter that has no gradient on any rank.

        Args:
            gradients: Tensors by name.
            op: The reduction.
            check: Raises ConfigError if a local tensor of a name is unsuitable for another reason than all strategies have.
        """
        tensors: dict[str, torch.Tensor] = {}
        manifest: dict[str, str] = {}
        refusal: ConfigError | None = None
        dtypes: set[torch.dtype] = set()
        for name, tensor in sorted(gradients.items()):
            if tensor is None:
                manifest[name] = _NONE
                continue
            try:
                local = local_tensor(name, tensor, kind="gradient", dtypes=DTYPE_CODES)
                if local.dtype not in dtypes:
                    op_code(op, local.dtype)
                    dtypes.add(local.dtype)
                if check is not None:
                    check(name, local)
            except ConfigError as error:
                manifest[name] = str(error)
                refusal = refusal or error
            else:
                manifest[name] = describe(local, shard_of(tensor))
                tensors[name] = local
        mark_written(tensor for name, tensor in gradients.items() if tensor is not None and name in tensors)
        return cls({} if refusal else tensors, manifest, refusal)

    def by_dtype(self) -> dict[torch.dtype, list[torch.Tensor]]:
        """Return the tensors by their dtype: those of one are reduced together."""
        found: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in self.tensors.values():
            found.setdefault(tensor.dtype, []).append(tensor)
        return found

    def runs(self, most_bytes: float) -> Iterator[list[torch.Tensor]]:
        """Iterate over tensors to reduce in one call: those of a dtype of up to so many bytes, and each of the others."""
        for tensors in self.by_dtype().values():
            small = [one for one in tensors if one.nbytes <= most_bytes]
            if small:
                yield small
            yield from ([one] for one in tensors if one.nbytes > most_bytes)

    def raise_if_refused(self) -> None:
        """Raise the error about an unsuitable tensor, which all ranks have."""
        if self.refusal is not None:
            raise self.refusal
