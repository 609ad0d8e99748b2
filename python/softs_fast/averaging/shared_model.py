"""The model of a rank as others see it, and all that changes its weights when it takes over those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.optim import Optimizer

from softs_fast.averaging.board import Fetch
from softs_fast.averaging.takeover import Before, Takeover, Trainee, copy_by_name, keep_share

Build = Callable[[], tuple[torch.nn.Module, Optimizer | None]]


class SharedModel:
    """A model of which others have snapshots.

    Args:
        trainee: the model and its optimizer.
        rules: what is shared and taken over.
        build: makes another model and optimizer; None if there is no such function.
    """

    def __init__(self, trainee: Trainee, rules: Takeover, build: Build | None) -> None:
        self.trainee = trainee
        self._rules = rules
        self._build = build
        self._names: list[str] = []
        self._absent: dict[str, torch.Tensor] = {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what is shared; its layout is that of the first call for good."""
        return self._as_first(self.trainee.tensors(self._rules))

    def use(self, trainee: Trainee) -> None:
        """Go on with another model. Tensors that it lacks, or has in other shapes, are shared as they were last."""
        shared = self.tensors() if self._names else {}
        self.trainee = trainee
        found = trainee.tensors(self._rules)
        self._absent = {name: tensor for name, tensor in shared.items() if not _fits(tensor, found.get(name))}

    def late_names(self) -> set[str]:
        """Return the names of the tensors that change in steps of the optimizer alone."""
        return self.trainee.late_names(self._rules)

    def has_buffers(self) -> bool:
        """Return whether the model has buffers."""
        return bool(self.trainee.buffer_names())

    def buffers_of(self, fetch: Fetch) -> dict[str, torch.Tensor]:
        """Return the buffers of a fetch, as copies."""
        names = self.trainee.buffer_names()
        found = {name: torch.empty_like(tensor) for name, tensor in self.tensors().items() if name in names}
        fetch.apply(found)
        return found

    def take(self, fetch: Fetch, buffers: Mapping[str, torch.Tensor]) -> None:
        """Take over weights of others. The parameters are the objects of the last call of `tensors`.

        Args:
            fetch: the weights.
            buffers: taken in place of those of `fetch`.
        """
        tensors = self._as_first(self.trainee.tensors(self._rules, has_same_parameters=True))
        share = self._rules.momentum
        old = {name: tensor.clone() for name, tensor in tensors.items()} if share else {}
        fetch.apply(tensors)
        copy_by_name(tensors, buffers)
        if share:
            keep_share(tensors, old, share)
        if self._build is not None:
            model, optimizer = self._build()
            if not self._rules.in_place:
                new = Trainee(model, optimizer)
                copy_by_name(new.tensors(self._rules), tensors)
                self.use(new)
        self._drop_state()

    def reset(self) -> None:
        """Take new weights."""
        assert self._build is not None
        new = Trainee(*self._build())
        if self._rules.in_place:
            own = self.tensors()
            old = {name: tensor.clone() for name, tensor in own.items()}
            copy_by_name(own, new.tensors(self._rules))
            if self._rules.momentum:
                keep_share(own, old, self._rules.momentum)
        else:
            self.use(new)
        self._drop_state()

    def before(self) -> Before:
        """Return a copy of all that a takeover may change."""
        return Before.of(self.trainee, self._rules)

    def undo(self, before: Before) -> None:
        """Undo a takeover."""
        before.restore()
        self.use(before.trainee)

    def _as_first(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self._absent:
            found = {
                name: self._absent[name] if name in self._absent else found[name] for name in self._names
            }
        self._names = list(found)
        return found

    def _drop_state(self) -> None:
        if self._rules.in_place and self._rules.optimizer_state == "fresh":
            self.trainee.drop_state()


def _fits(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and (other.shape, other.dtype) == (tensor.shape, tensor.dtype)
