"""Which tensors a rank shares, and how it takes over those of others: in place, so that all references stay valid."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from softs_fast.averaging.decide import check_known
from softs_fast.averaging.matching import persistent_buffers
from softs_fast.errors import ConfigError

BufferRule = Literal["average", "own", "best"]
StateRule = Literal["keep", "fresh", "donor"]


@dataclass(frozen=True)
class Takeover:
    """What a rank takes over, and what it keeps.

    Attributes:
        momentum: share of the own weights that stays, from 0 to below 1: `w = momentum * w + (1 - momentum) * average`.
        buffers: `average` takes the mean of float buffers and the largest of integers, and those by which a layer makes
            its weight, such as the vectors of `spectral_norm`, of the donor with the most weight; `best` takes all of
            that donor; `own` shares none. Buffers that a checkpoint does not have are never shared.
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
        check_known("buffers", self.buffers, BufferRule)
        check_known("optimizer_state", self.optimizer_state, StateRule)
        if not self.in_place and self.optimizer_state != "fresh":
            raise ConfigError(
                f'optimizer_state is "{self.optimizer_state}"; a new optimizer has none, so it must be "fresh"'
            )


@dataclass(eq=False)
class Trainee:
    """A model and its optimizer. Its tensors are looked up at each use, since all of them may be replaced at any time.

    Attributes:
        model: the model.
        optimizer: its optimizer; None if there is none, or its state does not matter.
    """

    model: torch.nn.Module
    optimizer: Optimizer | None

    def weights(self, also: Collection[str] = ()) -> dict[str, torch.Tensor]:
        """Return the parameters that are trained by name, tied ones once.

        Args:
            also: Names of others that are returned too, such as those that were trained before.
        """
        return {
            name: _real(weight)
            for name, weight in self.parameters().items()
            if weight.requires_grad or name in also
        }

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return all parameters by name, tied ones once."""
        return {f"model/{name}": weight for name, weight in self.model.named_parameters()}

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers that a checkpoint has, by name."""
        return {f"model/{name}": _real(buffer) for name, (buffer, _) in persistent_buffers(self.model)}

    def makers(self) -> set[str]:
        """Return the names of buffers by which a layer makes its weight, such as those of `spectral_norm`."""
        return {f"model/{name}" for name, (_, makes) in persistent_buffers(self.model) if makes}

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors that the optimizer keeps, by name."""
        if self.optimizer is None:
            return {}
        names = {id(weight): name for name, weight in self.model.named_parameters()}
        return {
            f"optimizer/{names.get(id(weight), number)}/{key}": value
            for number, (weight, state) in enumerate(self.optimizer.state.items())
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
        }

    def masters(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the copies of weights of 16 bits that the optimizer keeps in float32, each with its weight.

        An optimizer copies them back in its step, so new weights alone would not last.
        """
        states = self.optimizer.state.items() if self.optimizer is not None else ()
        return [
            (value, weight)
            for weight, state in states
            if isinstance(weight, torch.Tensor) and weight.dtype in (torch.float16, torch.bfloat16)
            for value in state.values()
            if isinstance(value, torch.Tensor) and value.dtype is torch.float32
            if value.shape == weight.shape and weight.any() and torch.equal(value.to(weight.dtype), weight)
        ]

    def late_names(self, rules: Takeover) -> set[str]:
        """Return the names of the tensors that change in steps of the optimizer alone."""
        if self.optimizer is None:
            return set()
        trained = {id(weight) for group in self.optimizer.param_groups for weight in group["params"]}
        names = {name for name, weight in self.parameters().items() if id(weight) in trained}
        return names | (self.state().keys() if rules.optimizer_state == "donor" else set())

    def drop_state(self) -> None:
        """Have the optimizer begin as if it were new."""
        if self.optimizer is not None:
            self.optimizer.state.clear()


@dataclass
class Before:
    """What a model was before it took over other weights, to undo that.

    Attributes:
        trainee: The model and its optimizer.
        tensors: Tensors that may change, by name.
        copies: Copies of these tensors from before the takeover, by name.
        state: State of the optimizer before the takeover, by parameter.
    """

    trainee: Trainee
    tensors: dict[str, torch.Tensor]
    copies: dict[str, torch.Tensor]
    state: dict[Any, Any]

    @classmethod
    def of(cls, trainee: Trainee, tensors: dict[str, torch.Tensor]) -> Before:
        """Copy all that a takeover may change."""
        tensors |= {f"master/{number}": master for number, (master, _) in enumerate(trainee.masters())}
        state = dict(trainee.optimizer.state) if trainee.optimizer is not None else {}
        return cls(trainee, tensors, copies_of(tensors), state)

    def restore(self) -> None:
        """Undo the takeover."""
        copy_by_name(self.tensors, self.copies)
        if self.trainee.optimizer is not None:
            self.trainee.optimizer.state.clear()
            self.trainee.optimizer.state.update(self.state)


def copies_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of tensors, by name."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


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
        blends = {}
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                wide = torch.promote_types(tensor.dtype, torch.float32)
                blends[name] = old[name].to(wide) * share + tensor.to(wide) * (1 - share)
    # Only now, as tensors may share memory, such as a matrix and its transpose.
    copy_by_name(tensors, blends)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or its memory as pairs of floats if it is complex: snapshots have no complex dtypes."""
    is_complex = tensor.is_complex() and tensor.layout is torch.strided and not tensor.is_conj()
    return torch.view_as_real(tensor.detach()) if is_complex else tensor
