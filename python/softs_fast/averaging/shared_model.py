"""The model of a rank as others see it, and all that changes its weights when it takes over those of others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
from torch.optim import Optimizer

from softs_fast.averaging.board import Fetch
from softs_fast.averaging.takeover import Before, Takeover, Trainee, copies_of, copy_by_name, keep_share
from softs_fast.errors import ConfigError
from softs_fast.snapshots import SnapshotLayout, are_finite
from softs_fast.tensors import local_tensor

logger = logging.getLogger(__name__)

_Kind = tuple[torch.Size | None, torch.dtype | None]

Build = Callable[[], tuple[torch.nn.Module, Optimizer | None]]


class SharedModel:
    """A model of which others have snapshots: the parameters that are trained, and buffers that a checkpoint has.

    Which tensors are shared is settled by the first call of `tensors`. From then on each is looked up by its name
    whenever it is used, so that the model may replace it by another one of the same shape and dtype.

    Args:
        trainee: The model and its optimizer.
        rules: Settings of what is shared and taken over.
        build: Function that makes another model and optimizer, or None.
    """

    def __init__(self, trainee: Trainee, rules: Takeover, build: Build | None) -> None:
        self.trainee = trainee
        self._rules = rules
        self._build = build
        # What is shared: as it was found last, and its shape and dtype, which stay. (A parameter gets another dtype in
        # place.)
        self._shared: dict[str, torch.Tensor] = {}
        self._kinds: dict[str, _Kind] = {}
        self._weights: set[str] = set()
        self._buffers: set[str] = set()
        # Names that the model in use does not have in the same shape, because it was built otherwise.
        self._absent: set[str] = set()
        self._warned: set[str] = set()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what is shared, by name.

        A tensor that is added later is not shared, and a buffer that has another shape than at first is shared as it was
        last; of both a warning tells once.

        Raises:
            ConfigError: No parameter is trained, or one cannot be shared; or one has gone, or has another shape or dtype
                than at first.
        """
        if not self._shared:
            self._settle()
            return dict(self._shared)
        found = self._found(self.trainee)
        for name, kind in self._kinds.items():
            now = found.get(name)
            if now is not None and _kind(now) == kind:
                self._shared[name] = now
            elif name in self._weights - self._absent:
                raise ConfigError(
                    f'parameter "{_plain(name)}" is {_words(_kind(now))}; expected {_words(kind)}, as others know it: '
                    "make another SelectiveAveraging after such a change"
                )
            elif name in self._buffers - self._absent:
                self._warn(name, f"is {_words(_kind(now))} now; others see what it was, {_words(kind)}")
        for name in self.trainee.weights().keys() - self._shared.keys():
            self._warn(name, "was added or unfrozen after the first step, so it is not shared")
        return dict(self._shared)

    def use(self, trainee: Trainee) -> None:
        """Go on with another model. Tensors that it lacks, or has in other shapes, are shared as they were last."""
        if self._shared and trainee.model is not self.trainee.model:
            found = self._found(trainee)
            self._absent = {name for name, kind in self._kinds.items() if _kind(found.get(name)) != kind}
        self.trainee = trainee

    @property
    def buffers(self) -> set[str]:
        """The names of the buffers that are shared; they may have any values."""
        return self._buffers

    @property
    def of_best(self) -> set[str]:
        """The names of the buffers that are taken of one donor, also if weights are those of several."""
        return self._buffers if self._rules.buffers == "best" else self._buffers & self.trainee.makers()

    def is_finite(self) -> bool:
        """Return whether all weights that are shared are finite."""
        tensors = self.tensors()
        return are_finite(local_tensor(name, tensors[name]) for name in self._weights)

    def late_names(self) -> set[str]:
        """Return the names of the tensors that change in steps of the optimizer alone."""
        return self.trainee.late_names(self._rules)

    def buffers_of(self, fetch: Fetch) -> dict[str, torch.Tensor]:
        """Return the buffers of a fetch that are taken of one donor, as copies."""
        tensors = self.tensors()
        found = copies_of({name: tensors[name] for name in self.of_best})
        fetch.apply(found)
        return found

    def take(self, fetch: Fetch, buffers: Mapping[str, torch.Tensor]) -> None:
        """Take over weights of others.

        Args:
            fetch: the weights.
            buffers: taken in place of those of `fetch`.
        """
        tensors = self.tensors()
        # First what may fail: then nothing has changed.
        built = Trainee(*self._build()) if self._build is not None else None
        share = self._rules.momentum
        old = copies_of(tensors) if share else {}
        masters = self.trainee.masters()
        fetch.apply(tensors)
        copy_by_name(tensors, buffers)
        if share:
            keep_share(tensors, old, share)
        if built is not None and not self._rules.in_place:
            # Parameters that are not shared, as they are not trained, are this rank's own.
            copy_by_name(built.weights(built.parameters()), self.trainee.weights(self.trainee.parameters()))
            copy_by_name(self._found(built), tensors)
            self.use(built)
        self._end_in_optimizer(masters)

    def reset(self) -> None:
        """Take new weights."""
        assert self._build is not None
        new = Trainee(*self._build())
        if self._rules.in_place:
            own = self.tensors()
            old = copies_of(own)
            masters = self.trainee.masters()
            copy_by_name(own, self._found(new))
            if self._rules.momentum:
                keep_share(own, old, self._rules.momentum)
            self._end_in_optimizer(masters)
        else:
            self.use(new)

    def before(self) -> Before:
        """Return a copy of all that a takeover may change."""
        return Before.of(self.trainee, self.tensors())

    def undo(self, before: Before) -> None:
        """Undo a takeover."""
        before.restore()
        self.use(before.trainee)

    def _settle(self) -> None:
        """Choose what is shared."""
        weights = self.trainee.weights()
        if not weights:
            raise ConfigError(
                "no parameter of the model is trained; leave requires_grad on for those to be averaged"
            )
        for name, weight in weights.items():
            local_tensor(_plain(name), weight, kind="parameter")
        buffers = {}
        for name, buffer in self._found_buffers(self.trainee).items():
            try:
                SnapshotLayout.of({name: buffer})
            except ConfigError as error:
                self._warn(name, f"is not shared: {error}")
            else:
                buffers[name] = buffer
        state = self.trainee.state() if self._rules.optimizer_state == "donor" else {}
        self._shared = weights | buffers | state
        self._kinds = {name: _kind(tensor) for name, tensor in self._shared.items()}
        self._weights, self._buffers = set(weights), set(buffers)

    def _found(self, trainee: Trainee) -> dict[str, torch.Tensor]:
        """Return what a model has now of what may be shared."""
        state = trainee.state() if self._rules.optimizer_state == "donor" else {}
        return trainee.weights(self._weights) | self._found_buffers(trainee) | state

    def _found_buffers(self, trainee: Trainee) -> dict[str, torch.Tensor]:
        return trainee.buffers() if self._rules.buffers != "own" else {}

    def _end_in_optimizer(self, masters: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Let the optimizer go on with the weights that are there now, if they are in the model that it has."""
        with torch.no_grad():
            for master, weight in masters:
                master.copy_(weight)
        if self._rules.in_place and self._rules.optimizer_state == "fresh":
            self.trainee.drop_state()

    def _warn(self, name: str, what: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning('tensor "%s" %s', _plain(name), what)


def _kind(tensor: torch.Tensor | None) -> _Kind:
    return (None, None) if tensor is None else (tensor.shape, tensor.dtype)


def _plain(name: str) -> str:
    return name.removeprefix("model/")


def _words(kind: _Kind) -> str:
    shape, dtype = kind
    return "absent" if shape is None else f"{str(dtype).removeprefix('torch.')} {list(shape)}"
