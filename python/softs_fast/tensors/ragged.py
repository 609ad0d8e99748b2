"""Tensors of a batch that have a length each, end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConfigError
from .dtypes import import_torch
from .tuples import made_as_tuples

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["RaggedTensor"]


@made_as_tuples
class RaggedTensor(NamedTuple):
    """The tensors of some samples, of which the first dimension varies.

    It is a tuple of two tensors, so everything that handles tuples of tensors handles it: pickling, pinning, the
    processes of a torch DataLoader.

    Attributes:
        values: the tensors of all samples, end to end, any dtype [sum of lengths, *rest].
        lengths: first dimension of each, int64 [batch].

    Example:
        >>> ids = RaggedTensor.from_samples([torch.tensor([1, 2, 3]), torch.tensor([4])])
        >>> ids.padded(value=-1)
        tensor([[ 1,  2,  3],
                [ 4, -1, -1]])
    """

    values: Tensor
    lengths: Tensor

    @classmethod
    def from_samples(cls, samples: Sequence[Tensor]) -> RaggedTensor:
        """Return the tensors of some samples, copied end to end.

        Args:
            samples: any dtype [length, *rest], at least one; dtype, device and rest are the same for all.

        Raises:
            ConfigError: there are no samples, or they differ in more than their length.
            ImportError: torch is not installed.
        """
        torch = import_torch()
        kinds = {(tensor.dtype, tensor.device, tensor.ndim, tuple(tensor.shape[1:])) for tensor in samples}
        if len(kinds) != 1 or not samples[0].ndim:
            shapes = [tuple(tensor.shape) for tensor in samples]
            raise ConfigError(
                f"need tensors of one dtype that differ in their first dimension, have {shapes}"
            )
        lengths = torch.tensor([len(tensor) for tensor in samples], device=samples[0].device)
        return cls(torch.cat(list(samples)), lengths)

    @classmethod
    def from_padded(cls, padded: Tensor, lengths: Tensor) -> RaggedTensor:
        """Return the first steps of each row of a padded tensor, copied end to end; the inverse of `padded`.

        Args:
            padded: any dtype [batch, longest, *rest].
            lengths: whole numbers from 0 to longest, [batch], on the device of `padded`.

        Raises:
            ConfigError: the shapes do not fit, or a length is out of range.
        """
        if padded.ndim < 2 or tuple(lengths.shape) != (len(padded),):
            raise ConfigError(f"lengths {list(lengths.shape)} do not fit a tensor {list(padded.shape)}")
        if len(padded) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= padded.shape[1]:
            raise ConfigError(f"lengths must be from 0 to {padded.shape[1]}")
        torch = import_torch()
        return cls(padded[_mask(lengths, padded.shape[1])], lengths.to(torch.int64))

    def padded(self, value: float = 0) -> Tensor:
        """Return a copy of which row i is sample i, with `value` behind its last step.

        Returns:
            The dtype of values [batch, longest, *rest].
        """
        torch = import_torch()
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        shape = (len(self.lengths), longest, *self.values.shape[1:])
        padded: Tensor = torch.full(shape, value, dtype=self.values.dtype, device=self.values.device)
        padded[_mask(self.lengths, longest)] = self.values
        return padded

    def nested(self) -> Tensor:
        """Return a nested tensor of layout `torch.jagged` on the same memory, [batch, j, *rest]."""
        torch = import_torch()
        offsets = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))
        nested: Tensor = torch.nested.nested_tensor_from_jagged(self.values, offsets)
        return nested

    def unbind(self) -> tuple[Tensor, ...]:
        """Return the tensor of each sample, [length, *rest], views of `values`."""
        tensors: tuple[Tensor, ...] = import_torch().split(self.values, self.lengths.tolist())
        return tensors

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> RaggedTensor:
        """Return it on a device; see `torch.Tensor.to`."""
        return RaggedTensor(*(tensor.to(device, non_blocking=non_blocking) for tensor in self))

    def pin_memory(self) -> RaggedTensor:
        """Return it in pinned memory; see `torch.Tensor.pin_memory`."""
        return RaggedTensor(*(tensor.pin_memory() for tensor in self))


def _mask(lengths: Tensor, longest: int) -> Tensor:
    """Return which steps exist, bool [batch, longest]."""
    mask: Tensor = import_torch().arange(longest, device=lengths.device) < lengths.unsqueeze(1)
    return mask
