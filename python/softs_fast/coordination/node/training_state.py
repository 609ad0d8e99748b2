"""What all workers of a job have in common: weights, optimizer, and what else must be equal."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ... import kernels
from ...collectives import Overlap, ReduceOp, ShmStrategy, Strategy
from ...errors import ConfigError
from ...tensors.optimizers import load_optimizer
from ...user_code import is_ctrl_c, text_of_error
from .sent_trees import MAX_REFUSAL_BYTES, receive_tree, send_tree
from .state_tree import decode_tree, encode_tree

#: Entry of the reduced gradients that says which parameters have one on any rank.
_PRESENCE = "which parameters have a gradient"


class Stateful(Protocol):
    """An object with a state, such as a scheduler of learning rates."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on with a state."""


class TrainingState:
    """The state of a training, which a worker copies from another one.

    Args:
        model: its gradients are reduced; its parameters and buffers are copied.
        optimizer: applies the gradients.
        others: more objects with a state, by name.
        apply: applies the reduced gradients, in place of `optimizer.step()`: to clip them, or to step a scheduler or a
            second optimizer. It must depend on nothing but this state and the gradients, so that all workers do the
            same. If it raises, the worker has no valid weights any more, and copies those of another one.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1)
        >>> state = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        others: dict[str, Stateful] | None = None,
        apply: Callable[[], object] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self._parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer, **(others or {})}
        self._apply = apply or optimizer.step
        self._applied: list[Callable[[], object]] = []
        self._means: dict[str, torch.Tensor] = {}
        # The copy of what the optimizer keeps, for the last snapshot, and the process that makes it.
        self._copying: tuple[Future[None], int] | None = None
        # From `backward` until gradients are dropped.
        self._later: list[RemovableHandle] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the copy that is under way."""
        return {**vars(self), "_copying": None}

    @property
    def parts(self) -> dict[str, Stateful]:
        """Model, optimizer and the other objects, by name."""
        return dict(self._parts)

    def only(self, parts: dict[str, Stateful]) -> TrainingState:
        """Return a state of some objects alone, to be written and loaded."""
        some = copy.copy(self)
        some._parts = parts
        return some

    # --- Steps ---

    def backward(self, strategy: Strategy, loss: torch.Tensor) -> None:
        """Compute gradients of a loss, and reduce all; while it computes, if the strategy can do so. A call of all ranks.

        Raises:
            ConfigError: As for `reduce`; or a gradient is computed again before gradients are dropped.
            PeerLost: A rank was lost; the gradients are undefined.
        """
        if not isinstance(strategy, ShmStrategy):
            loss.backward()  # type: ignore[no-untyped-call]
            self.reduce(strategy)
        else:
            with strategy.overlap(self._trained()) as begun:
                loss.backward()  # type: ignore[no-untyped-call]
                self.reduce(begun)
        for one in self._trained().values():
            self._later.append(one.register_post_accumulate_grad_hook(_refuse))  # type: ignore[no-untyped-call]

    def reduce(self, strategy: Strategy | Overlap) -> None:
        """Replace the gradients by their mean over all ranks; a call of all ranks.

        A parameter without a gradient on some ranks counts as zero there. Without one on every rank it keeps none, so
        that the optimizer leaves it alone, as it does in one process.

        Raises:
            ConfigError: A gradient cannot be reduced, or the ranks have different parameters; the text names them. Or
                an optimizer has a gradient of a parameter that is not in the model.
            PeerLost: A rank was lost; the gradients are undefined.
        """
        trained = self._trained()
        self._check_optimizers()
        has = [one.grad is not None for one in trained.values()]
        gradients = {}
        for name, parameter in trained.items():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients[name] = parameter.grad
        if not gradients:
            return strategy.all_reduce_gradients({}, ReduceOp.MEAN)
        # It travels with the gradients, because a worker that has these must know what to apply even if it loses the
        # others in the next call. The dtype of a gradient saves a run of its own.
        some = next(iter(gradients.values()))
        presence = torch.tensor(has, device=some.device).to(some.dtype)
        strategy.all_reduce_gradients({**gradients, _PRESENCE: presence, **self._means}, ReduceOp.MEAN)
        for parameter, count in zip(trained.values(), presence.tolist(), strict=True):
            if not count:
                parameter.grad = None
        return None

    def apply(self) -> None:
        """Apply the gradients, and drop them."""
        try:
            self.settle()
            self._apply()
            for applied in self._applied:
                applied()
        finally:
            self.drop_gradients()

    def drop_gradients(self) -> None:
        """Drop the gradients of all modules and optimizers."""
        while self._later:
            self._later.pop().remove()
        for part in self._parts.values():
            # Optimizers of other libraries are not torch's, and may take no arguments; torch's default is None.
            zero_grad = getattr(part, "zero_grad", None)
            if zero_grad is not None:
                zero_grad()

    # --- Copies ---

    @contextmanager
    def carry(
        self, name: str, part: Stateful, applied: Callable[[], object], mean: torch.Tensor
    ) -> Iterator[None]:
        """Have another object travel with the state in a block: a worker that copies the weights copies it too.

        Args:
            name: Name of the object.
            part: Object, with what belongs to the weights, such as where their samples end.
            applied: Function called each time gradients were applied, also after the epoch of their step, so that
                the object and the weights are of one step. It must not raise.
            mean: Tensor that `reduce` replaces by its mean over all ranks, in the call that reduces the gradients.

        Raises:
            ConfigError: The state has an object of that name.
        """
        if name in self._parts:
            raise ConfigError(f'the state has an object "{name}" already: {list(self._parts)}')
        self._parts[name] = part
        self._applied.append(applied)
        self._means[name] = mean
        try:
            yield
        finally:
            del self._parts[name]
            self._applied.remove(applied)
            del self._means[name]

    def check(self) -> None:
        """Check that the state can be sent to another worker.

        Raises:
            ConfigError: A part of it cannot; the text names it.
        """
        self._encoded()

    def send(self, strategy: Strategy, *, to_followers: bool = False) -> str:
        """Send the state to all ranks that `receive`; return why it cannot be sent, or an empty text.

        Args:
            strategy: Strategy of this rank and of those that receive.
            to_followers: Whether these have replayed all steps, and need only what `replay` does not bring.

        Raises:
            PeerLost: A rank was lost.
        """
        refusal = ""
        tensors: dict[str, torch.Tensor] = {}
        try:
            text, tensors = self._encoded(self._is_replayed() if to_followers else None)
        except (
            BaseException
        ) as error:  # of the user's state_dict, too: the state that is trained here is valid
            if is_ctrl_c(error):
                raise
            refusal = text_of_error(error)
            text = refusal.encode()[:MAX_REFUSAL_BYTES]
        send_tree(strategy, text, tensors, is_refusal=bool(refusal))
        return refusal

    def receive(self, strategy: Strategy, source: int, *, is_follower: bool = False) -> Any:
        """Return the states of a rank that calls `send`, for `load`; nothing has changed yet.

        Args:
            strategy: Strategy of this rank, the source, and others that receive.
            source: Rank of the source.
            is_follower: Whether this rank has replayed all steps: it keeps the tensors that the source leaves out.

        Raises:
            PeerLost: A rank was lost.
            WireError: The source's state is malformed.
            ConfigError: The source cannot send its state; the text says why.
        """
        return receive_tree(strategy, source, self.tensors() if is_follower else None)

    def load(self, states: Any) -> None:
        """Go on with received states.

        Raises:
            ConfigError: They do not fit the model, the optimizer or the other objects, which are undefined then.
        """
        if not isinstance(states, dict) or states.keys() != self._parts.keys():
            raise ConfigError(f"the source has {list(states)}; this worker has {list(self._parts)}")
        self.settle()
        for name, part in self._parts.items():
            try:
                if isinstance(part, Optimizer):
                    load_optimizer(part, states[name])
                    continue
                if isinstance(part, torch.nn.Module):
                    _check_dtypes(part.state_dict(), states[name])
                part.load_state_dict(states[name])
            except Exception as error:
                raise ConfigError(f'the state of the source does not fit "{name}": {error}') from error

    def snapshot(
        self, before: Mapping[str, torch.Tensor], beside: Executor | None = None
    ) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Return a copy of the state: JSON without the tensors, and these in host memory, contiguous, by their places.

        Args:
            before: Tensors of an earlier copy, which is not needed any more: new memory costs several times the copy.
            beside: Copies what `optimizer` keeps in host memory while the next step computes its gradients; `copied` waits
                for it, and steps of the optimizer if `settle` is a hook of them. All else is copied at once: a program
                may write weights at any time, the optimizer alone its state.

        Raises:
            ConfigError: A part of the state cannot be written so; the text names it.
        """
        text, tensors = self._encoded()
        copies = {name: _fitting(tensor, before.get(name)) for name, tensor in tensors.items()}
        now: list[str] = []
        later: list[str] = []
        for name, tensor in tensors.items():
            can_wait = (
                beside is not None and name.startswith("optimizer.state.") and tensor.device.type == "cpu"
            )
            (later if can_wait else now).append(name)

        def copy(names: list[str]) -> None:
            for name in names:
                kernels.copy(tensors[name].detach(), copies[name])

        copy(now)
        if beside is not None:
            self._copying = beside.submit(copy, later), os.getpid()
        return text, copies

    def copied(self) -> None:
        """Wait until the tensors of the last snapshot are whole."""
        if self._copying is not None:
            self._copying[0].result()

    def settle(self, *step: object) -> None:
        """Wait until what the optimizer keeps may be changed; may be a hook before its steps."""
        # A fork has no thread that copies.
        if self._copying is not None and self._copying[1] == os.getpid():
            wait([self._copying[0]])

    def load_snapshot(self, text: bytes, receive: Callable[[torch.Tensor], None]) -> None:
        """Go on with the state of a snapshot.

        Args:
            text: JSON of the snapshot.
            receive: Fills a new tensor of host memory; called for each one of the snapshot in their order.

        Raises:
            WireError: The JSON is malformed.
            ConfigError: As for `load`.
        """
        self.load(decode_tree(text, receive))

    # --- Steps of others ---

    def reduced(self, before: Mapping[str, torch.Tensor]) -> tuple[bytes, dict[str, torch.Tensor]]:
        """Return what `replay` applies, before this worker applies it: JSON, and copies of the gradients in host memory.

        The body of a step may have set what optimizers do with them, such as a rate, so that is a part of it.

        Args:
            before: Tensors of an earlier step, which are not needed any more, as for `snapshot`.
        """
        groups = {
            name: part.state_dict()["param_groups"]
            for name, part in self._parts.items()
            if isinstance(part, Optimizer)
        }
        names: dict[str, list[str]] = {}
        gradients: dict[str, torch.Tensor] = {}
        for dtype, named in self._gradients().items():
            # One tensor: to send many small ones would take longer than a step.
            gradients[dtype] = _joined(named.values(), before.get(f"gradients.{dtype}"))
            names[dtype] = list(named)
        text, tensors = encode_tree({"groups": groups, "names": names, "gradients": gradients})
        copied = {id(one) for one in gradients.values()}
        return text, {
            place: one if id(one) in copied else _copied(one, before.get(place))
            for place, one in tensors.items()
        }

    def replay(self, step: Any) -> None:
        """Apply a step that other workers have reduced.

        Args:
            step: Decoded tree of `reduced`.

        Raises:
            ConfigError: The step has the gradient of a parameter that is not trained here.
            Exception: The step does not fit this state, or cannot be applied; the weights are undefined then.
        """
        trained = self._trained()
        others = [name for names in step["names"].values() for name in names if name not in trained]
        if others:
            raise ConfigError(
                f"the source trains parameters that this worker does not: {', '.join(others[:8])}; has a step changed "
                "their requires_grad?"
            )
        gradients: dict[str, torch.Tensor] = {}
        for dtype, names in step["names"].items():
            sizes = [trained[name].numel() for name in names]
            gradients.update(zip(names, step["gradients"][dtype].split(sizes), strict=True))
        for name, groups in step["groups"].items():
            optimizer = self._parts[name]
            load_optimizer(optimizer, {"state": optimizer.state_dict()["state"], "param_groups": groups})  # type: ignore[arg-type]
        for name, parameter in trained.items():
            gradient = gradients.get(name)
            if gradient is not None:
                # In the layout of the parameter, as autograd makes it: sums over it have an order.
                gradient = torch.empty_like(parameter, requires_grad=False).copy_(
                    gradient.view(parameter.shape)
                )
            parameter.grad = gradient
        self.apply()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the state, in use, by their places."""
        return self._encoded()[1]

    def replayed(self) -> dict[str, torch.Tensor]:
        """Return those of `tensors` that replaying steps changes."""
        is_replayed = self._is_replayed()
        return {place: one for place, one in self.tensors().items() if is_replayed(place)}

    def _is_replayed(self) -> Callable[[str], bool]:
        """Return what tells by its place whether only `apply` changes a tensor: weights, and states of optimizers."""
        weights = {f"model.{name}" for name, _ in self.model.named_parameters(remove_duplicate=False)}
        states = tuple(f"{name}.state." for name, part in self._parts.items() if isinstance(part, Optimizer))
        return lambda place: place in weights or place.startswith(states)

    def _encoded(self, is_kept: Callable[[str], bool] | None = None) -> tuple[bytes, dict[str, torch.Tensor]]:
        states = {name: part.state_dict() for name, part in self._parts.items()}
        return encode_tree(states) if is_kept is None else encode_tree(states, is_kept)

    def _gradients(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the gradients by their dtype, then by the names of their parameters."""
        found: dict[str, dict[str, torch.Tensor]] = {}
        for name, one in self._trained().items():
            if one.grad is not None:
                found.setdefault(str(one.grad.dtype), {})[name] = one.grad
        return found

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: one for name, one in self.model.named_parameters() if one.requires_grad}

    def _check_optimizers(self) -> None:
        """Refuse gradients of parameters that are trained here, and are not in the model: ranks would differ in them."""
        known = {id(one) for one in self.model.parameters()}
        for name, part in self._parts.items():
            for group in part.param_groups if isinstance(part, Optimizer) else ():
                for number, one in enumerate(group["params"]):
                    if one.grad is not None and id(one) not in known:
                        raise ConfigError(
                            f'parameter {number} of a group of "{name}", {list(one.shape)}, has a gradient, and is not in '
                            "the model, so its gradient is not reduced: make one module of all that is trained"
                        )


def _refuse(parameter: torch.Tensor) -> None:
    raise ConfigError(
        f"a gradient of {list(parameter.shape)} is computed after step.backward(), which has reduced it: call that for the "
        "last loss of a step, and loss.backward() for those before"
    )


def _check_dtypes(own: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Refuse tensors that a module would cast in silence."""
    for name, tensor in own.items():
        other = sent.get(name)
        if (
            isinstance(tensor, torch.Tensor)
            and isinstance(other, torch.Tensor)
            and tensor.dtype != other.dtype
        ):
            raise ConfigError(
                f'"{name}" is {other.dtype} at the source and {tensor.dtype} here; expected the same'
            )


def _fitting(tensor: torch.Tensor, copy: torch.Tensor | None) -> torch.Tensor:
    """Return host memory for a copy of a tensor: that of another copy if it fits."""
    if copy is not None and copy.shape == tensor.shape and copy.dtype == tensor.dtype:
        return copy
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def _copied(tensor: torch.Tensor, copy: torch.Tensor | None) -> torch.Tensor:
    """Return a copy of a tensor in host memory, in that of another copy if it fits."""
    copy = _fitting(tensor, copy)
    kernels.copy(tensor.detach(), copy)
    return copy


def _joined(tensors: Collection[torch.Tensor], copy: torch.Tensor | None) -> torch.Tensor:
    """Return the elements of tensors of one dtype one after another in host memory, in that of `copy` if they fit."""
    sizes = [one.numel() for one in tensors]
    if copy is None or copy.numel() != sum(sizes):
        copy = torch.empty(sum(sizes), dtype=next(iter(tensors)).dtype, device="cpu")
    for part, tensor in zip(torch.split(copy, sizes), tensors, strict=True):
        kernels.copy(tensor, part.view(tensor.shape))
    return copy
