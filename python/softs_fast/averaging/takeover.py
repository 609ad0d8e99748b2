"""Which tensors a rank shares, and how it takes over those of others: in place, so that all references stay valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch.optim import Optimizer

from softs_fast.errors import ConfigError
from softs_fast.snapshots import are_finite

BufferRule = Literal["average", "own", "best"]
StateRule = Literal["keep", "fresh", "donor"]


@dataclass(frozen=True)
class Takeover:
    """What a rank takes over, and what it keeps.

    Attributes:
        momentum: share of the own weights that stays, from 0 to below 1: `w = momentum * w + (1 - momentum) * average`.
        buffers: `average` takes the mean of float buffers and the largest of integers, `best` those of the donor with
            the most weight, `own` shares none.
        optimizer_state: `keep` leaves it, `fresh` drops it, `donor` takes the donor's: a snapshot has it then, which
            with Adam triples its size. For the strategy `best_only`.
        in_place: whether weights change in the model that there is; else `build` makes a model and an optimizer for
            each replacement.

    Raises:
        ConfigError: a value is out of range.
    """

    momentum: float = 0.0
    buffers: BufferRule = "average"
    optimizer_state: StateRule = "keep"
    in_place: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(
                f"momentum is {self.momentum}; the share of the own weights is from 0 to below 1"
            )
        for name, known in (("buffers", BufferRule), ("optimizer_state", StateRule)):
            if getattr(self, name) not in get_args(known):
                raise ConfigError(
                    f'{name} is "{getattr(self, name)}"; known are {", ".join(get_args(known))}'
                )
        if not self.in_place and self.optimizer_state != "fresh":
            raise ConfigError(
                f'optimizer_state is "{self.optimizer_state}"; a new optimizer has none, so it must be "fresh"'
            )


@dataclass(eq=False)
class Trainee:
    """A model and its optimizer.

    Attributes:
        model: the model.
        optimizer: its optimizer; None if there is none, or its state does not matter.
    """

    model: torch.nn.Module
    optimizer: Optimizer | None

    def __post_init__(self) -> None:
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._places: list[int] = []
        self._weights: dict[str, torch.Tensor] = {}

    def tensors(self, rules: Takeover, *, has_same_parameters: bool = False) -> dict[str, torch.Tensor]:
        """Return what is shared by the rules, by name; tied weights once.

        Args:
            rules: what is shared.
            has_same_parameters: whether the parameters are the objects of the last call, which saves the way through
                all modules.
        """
        parameters = self._parameters
        if not has_same_parameters or not parameters:
            parameters = dict(self.model.named_parameters())
        places = [weight.data_ptr() for weight in parameters.values()]
        known = self._parameters.values()
        if places != self._places or [*map(id, parameters.values())] != [*map(id, known)]:
            self._places = places
            self._weights = {f"model/{name}": weight.detach() for name, weight in parameters.items()}
        self._parameters = parameters
        shared = dict(self._weights)
        if rules.buffers != "own":
            shared |= {f"model/{name}": buffer.detach() for name, buffer in self.model.named_buffers()}
        if rules.optimizer_state == "donor":
            shared |= self._state()
        return shared

    def buffer_names(self) -> set[str]:
        """Return the names of the buffers among `tensors`."""
        return {f"model/{name}" for name, _ in self.model.named_buffers()}

    def late_names(self, rules: Takeover) -> set[str]:
        """Return the names of the tensors among `tensors` that change in steps of the optimizer alone."""
        if self.optimizer is None:
            return set()
        trained = {id(weight) for group in self.optimizer.param_groups for weight in group["params"]}
        names = {f"model/{name}" for name, weight in self.model.named_parameters() if id(weight) in trained}
        return names | (self._state().keys() if rules.optimizer_state == "donor" else set())

    def is_finite(self) -> bool:
        """Return whether all weights are."""
        return are_finite(self.model.parameters())

    def drop_state(self) -> None:
        """Have the optimizer begin as if it were new."""
        if self.optimizer is not None:
            self.optimizer.state.clear()

    def _state(self) -> dict[str, torch.Tensor]:
        if self.optimizer is None:
            return {}
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        return {
            f"optimizer/{names.get(id(weight), number)}/{key}": value
            for number, (weight, state) in enumerate(self.optimizer.state.items())
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }


@dataclass
class Before:
    """What a model was before it took over other weights, to undo that.

    Attributes:
        trainee: the model and its optimizer.
        tensors: those that may change, by name.
        copies: what they were.
        state: what the optimizer kept, by parameter.
    """

    trainee: Trainee
    tensors: dict[str, torch.Tensor]
    copies: dict[str, torch.Tensor]
    state: dict[Any, Any]

    @classmethod
    def of(cls, trainee: Trainee, rules: Takeover) -> Before:
        """Copy all that a takeover may change."""
        tensors = trainee.tensors(rules)
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        return cls(
            trainee, tensors, copies, dict(trainee.optimizer.state) if trainee.optimizer is not None else {}
        )

    def restore(self) -> None:
        """Undo the takeover."""
        copy_by_name(self.tensors, self.copies)
        if self.trainee.optimizer is not None:
            self.trainee.optimizer.state.clear()
            self.trainee.optimizer.state.update(self.state)


def copy_by_name(into: Mapping[str, torch.Tensor], source: Mapping[str, torch.Tensor]) -> None:
    """Copy tensors of the same name and shape; others are left."""
    with torch.no_grad():
        for name, tensor in into.items():
            other = source.get(name)
            if other is not None and other.shape == tensor.shape:
                tensor.copy_(other)


def keep_share(tensors: Mapping[str, torch.Tensor], old: Mapping[str, torch.Tensor], share: float) -> None:
    """Set floats to `share` times what they were plus the rest of what they are."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                wide = torch.promote_types(tensor.dtype, torch.float32)
                tensor.copy_(old[name].to(wide) * share + tensor.to(wide) * (1 - share))
