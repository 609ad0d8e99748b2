"""Gradients that are reduced while a backward pass computes others."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch

from softs_fast import _kernels
from softs_fast.collectives import agreement
from softs_fast.collectives.strategy import ReduceOp
from softs_fast.collectives.tensors import dtype_code, op_code
from softs_fast.errors import ConfigError
from softs_fast.tensors import as_plain, local_tensor, mark_written

if TYPE_CHECKING:
    from softs_fast.collectives.host.shm_strategy import ShmStrategy

__all__ = ["Overlap"]

# Those of DistributedDataParallel: the first reduction begins early, and the others are worth a call.
FIRST_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20

Named = Mapping[str, torch.Tensor]


class Overlap:
    """Reduces gradients to their means in the background, in buckets, as a backward pass in its block computes them.

    The reduction of a bucket begins when all its gradients are there, and those of the buckets before it have begun: so
    all ranks make the same calls in the same order. `all_reduce_gradients` reduces what is left. Until the block ends, no
    other call of the strategy may be made. Its end waits for all calls that have begun, whatever becomes of them.

    Args:
        strategy: Strategy of the ranks; it keeps this, and so the memory of calls that an interrupt has left pending.
        queue: Queue of its group, empty.
        parameters: Parameters by name, in the order of the model: the last ones get their gradients first.
        tag: Hash of the parameters.
    """

    def __init__(self, strategy: ShmStrategy, queue: _kernels.CallQueue, parameters: Named, tag: int) -> None:
        self._strategy = strategy
        self.queue = queue
        self.tag = tag
        self._names = {parameter: name for name, parameter in parameters.items()}
        self._buckets = cut(parameters, FIRST_BYTES, BUCKET_BYTES)
        self._bucket_of = {name: number for number, names in enumerate(self._buckets) for name in names}
        self._parameters = parameters
        self._missing = [set(names) for names in self._buckets]
        self._outcomes: list[_kernels.Outcome] = []
        # Memory that calls use, and the gradients that are to have its values.
        self._lent: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> Self:
        """Watch the gradients of the parameters."""
        try:
            for parameter in self._names:
                handle = parameter.register_post_accumulate_grad_hook(self._has_gradient)  # type: ignore[no-untyped-call]
                self._handles.append(handle)
        except BaseException:
            self._remove_hooks()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the calls that have begun."""
        self._remove_hooks()
        self.await_calls()

    def await_calls(self) -> None:
        """Wait for the calls that have begun, each up to its time-out, and give their memory back."""
        for outcome in self._outcomes:
            outcome.wait()
        self._lent = []

    def all_reduce_gradients(self, gradients: Named, op: ReduceOp | str = ReduceOp.MEAN) -> None:
        """Reduce the gradients of which no reduction has begun yet, and wait for those that have.

        Args:
            gradients: Gradients of all parameters by name, zeros where there is none, and further tensors.
            op: The reduction of these; that of parameters is the mean.
        """
        while len(self._outcomes) < len(self._buckets):
            self._begin(gradients)
        for outcome in self._outcomes:
            outcome.wait()
            self._check(outcome)
        with torch.no_grad():
            for gradient, lent in self._lent:
                if lent is not gradient:
                    gradient.copy_(lent)
        mark_written(gradients[name] for name in self._parameters)
        others = {name: one for name, one in gradients.items() if name not in self._parameters}
        self._strategy.all_reduce_gradients(others, op)

    def _remove_hooks(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _has_gradient(self, parameter: torch.Tensor) -> None:
        name = self._names[parameter]
        missing = self._missing[self._bucket_of[name]]
        if name not in missing:
            raise ConfigError(
                f'gradient of parameter "{name}" is computed twice in one backward pass, as by a reentrant checkpoint, and '
                "its reduction may have begun: use checkpoint(use_reentrant=False), or loss.backward()"
            )
        missing.remove(name)
        while len(self._outcomes) < len(self._buckets) and not self._missing[len(self._outcomes)]:
            for outcome in self._outcomes:
                # What the rest of the pass computes is of no use.
                if outcome.wait(0.0):
                    self._check(outcome)
            gradients = {name: one.grad for name, one in self._parameters.items() if one.grad is not None}
            self._begin(gradients, may_be_read=True)

    def _begin(self, gradients: Named, *, may_be_read: bool = False) -> None:
        """Begin to reduce the next bucket; `may_be_read`: the rest of the pass may yet read the memory of its gradients."""
        names = self._buckets[len(self._outcomes)]
        dtype = self._parameters[names[0]].dtype
        pieces = []
        for name in names:
            gradient = local_tensor(name, gradients[name], kind="gradient", dtypes=[dtype])
            lent = as_plain(gradient)
            if may_be_read and _is_shared(lent):
                lent = lent.clone()
            self._lent.append((gradient, lent))
            pieces.append((lent.data_ptr(), lent.numel()))
        call = _kernels.Call.all_reduce(pieces, dtype_code(dtype), op_code(ReduceOp.MEAN, dtype))
        self._outcomes.append(self.queue.submit(call, self._strategy.timeout_s))

    def _check(self, outcome: _kernels.Outcome) -> None:
        """Raise what a call has raised, or that the ranks make different calls."""
        texts = [text.decode(errors="replace") for text in outcome.differences()]
        if texts:
            raise ConfigError(f"ranks make different calls: {agreement.by_value(texts)}")


def _is_shared(gradient: torch.Tensor) -> bool:
    """Return whether something else has the memory of a gradient: autograd keeps views of what other functions read."""
    storage = gradient.untyped_storage()
    # That of the tensor, and of the object here.
    return int(torch._C._storage_Use_Count(storage._cdata)) > 2


def cut(parameters: Named, first_bytes: int, bucket_bytes: int) -> list[list[str]]:
    """Return the names of parameters in buckets of one dtype each, from the last parameter to the first.

    Args:
        parameters: Parameters by name.
        first_bytes: Bytes at which the first bucket is full.
        bucket_bytes: Bytes at which another one is full.
    """
    full: list[list[str]] = []
    open_: dict[torch.dtype, list[str]] = {}
    for name, parameter in reversed(list(parameters.items())):
        names = open_.setdefault(parameter.dtype, [])
        names.append(name)
        if sum(parameters[one].nbytes for one in names) >= (bucket_bytes if full else first_bytes):
            full.append(open_.pop(parameter.dtype))
    return [*full, *open_.values()]
