"""The model and its optimizer: pushes become a step. It runs in one thread, one call at a time."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, optim

from ....errors import ConfigError
from ...job import Job
from ...rounds.events import Share
from ...wire.manifest import Manifest
from ...wire.tensors import (
    Contents,
    Memory,
    first_not_finite,
    from_bytes,
    is_finite,
    load_buffers,
    of_module,
    parameters_of,
)
from .norms import NormGuard, norm_of
from .plain import decode_state, encode_state, first_difference
from .undo import Undo

__all__ = ["Trainer", "load_exactly", "mean_of", "module_state"]

#: Vectors of which the memory is used again: means, weights, and bases of XOR.
_KEPT = 8
#: Whole numbers up to here are float32.
_MAX_EXACT = 1 << 24

#: Elements that are summed at once: their float64 sums stay in the cache, and torch uses one thread for so few. (Measured
#: for 4 vectors of 22 M: 1 << 14 is seven times as fast as 1 << 16, and 1 << 15 a little faster still.)
_CHUNK = 1 << 15
#: That sum: more than these would wait for memory.
_THREADS = min(4, os.cpu_count() or 1)


class Trainer:
    """Master weights, buffers, optimizer, schedule.

    Args:
        job: Job to train.
        state: State of a trainer before this one; None for none. Its weights are taken now, and the rest of it by
            `prepare`, which must be called before a step: to make a process's first optimizer, torch imports modules
            for a second.

        norm_guard: Greatest norm of a push, in medians of recent ones; 0 for any.

    Attributes:
        scaled: Pushes of the last step that were longer than that, with their factors.

    Raises:
        ConfigError: the model has nothing to train or is not that of the state, or the optimizer has other parameters, or
            a state that no file can hold.
    """

    def __init__(self, job: Job, state: dict[str, Any] | None = None, norm_guard: float = 0.0) -> None:
        self._job = job
        self._guard = NormGuard(norm_guard)
        self.scaled: list[tuple[Share, float]] = []
        self._memory = Memory(_KEPT)
        self.module = job.model()
        self.manifest = Manifest.of(self.module)
        self._parameters = parameters_of(self.module, self.manifest)
        if any(not one.is_cpu for one in self._parameters):
            raise ConfigError("the model of the job is not on the CPU, where a parameter server has it")
        self._undo = Undo(self.module, self.manifest)
        self._state = state
        self._built: tuple[optim.Optimizer, optim.lr_scheduler.LRScheduler | None] | None = None
        if state is None:
            self.prepare()
        else:
            with _other_model():
                self.module.load_state_dict(module_state(state))
            self._compare("module")

    def prepare(self) -> tuple[optim.Optimizer, optim.lr_scheduler.LRScheduler | None]:
        """Return the optimizer and the schedule; the first call makes them.

        Raises:
            ConfigError: they are not those of the state, take a step only with arguments, or have a state that no file
                can hold.
        """
        if self._built is not None:
            return self._built
        optimizer = self._job.optimizer(self._parameters)
        schedule = None if self._job.schedule is None else self._job.schedule(optimizer)
        for name, one in (("optimizer", optimizer), ("schedule", schedule)):
            _check_step(name, one)
        self._built = optimizer, schedule
        if self._state is not None:
            with _other_model():
                load_exactly(optimizer, decode_state(self._state["optimizer"]))
                if schedule is not None and self._state["schedule"] is not None:
                    schedule.load_state_dict(decode_state(self._state["schedule"]))
            self._compare("optimizer", "schedule")
            self._state = None
        self.state()
        return self._built

    def contents(self) -> Contents:
        """Return copies of weights and buffers, as frames have them."""
        return of_module(self.module, self.manifest, self._memory)

    def step(
        self,
        shares: Sequence[tuple[Share, Contents]],
        rate_factor: float,
        divisor: float,
        clip_norm: float,
        before: Contents,
    ) -> tuple[str | None, Contents]:
        """Average pushes in this order, and have the optimizer do a step.

        Sums are float64, divided once and cast once to float32, so the same pushes make the same bits. A parameter of
        which no push has a gradient has none here, so decay and momentum leave it alone.

        Args:
            shares: Pushes: the share and the contents of each.
            rate_factor: Factor of the learning rate of this step.
            divisor: Divisor of the sum of the pushes.
            clip_norm: Greatest norm of a push; 0 for any.
            before: Weights so far, as `contents` gave them.

        Returns:
            Which tensor is not finite, so that the step has changed nothing, the optimizer and the schedule included;
            None if all are. And the weights after the step.

        Raises:
            ConfigError: A tensor of the module was replaced, or a state has something that no file can hold.

        Source: Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.1, for the factor of the rate.
        """
        self.scaled = []
        mean = mean_of(
            [(share.weight * self._factor(share, one, clip_norm), one.parameters) for share, one in shares],
            divisor,
            self._memory,
        )
        if not is_finite(mean):
            return f"the gradient of {first_not_finite(Contents(mean), self.manifest)}", before
        self._check_parameters()
        optimizer, schedule = self.prepare()
        self._undo.keep(optimizer, before)
        self._set_gradients(mean, [one.present for _, one in shares])
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * rate_factor
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter in self._parameters:
            parameter.grad = None
        self._average_buffers(shares)
        after = self.contents()
        bad = first_not_finite(after, self.manifest, before.floats) or self._undo.overflowed()
        if bad is not None:
            self._undo.restore()
            return bad, before
        if schedule is not None:
            schedule.step()
        self.state()
        return None, after

    def evaluate(self) -> float | None:
        """Return what the job says of the weights; None if it says nothing."""
        if self._job.evaluate is None:
            return None
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                return float(self._job.evaluate(self.module))
        finally:
            self.module.train(was_training)

    def state(self) -> dict[str, Any]:
        """Return what a later trainer needs, as `plain.encode_state` makes it.

        Raises:
            ConfigError: Something in it cannot be read back from a file.
        """
        module = self.module.state_dict()
        optimizer, schedule = self.prepare()
        return {
            "module": encode_state(module, "module"),
            "metadata": encode_state(getattr(module, "_metadata", None), "module"),
            "optimizer": encode_state(optimizer.state_dict(), "optimizer"),
            "schedule": None if schedule is None else encode_state(schedule.state_dict(), "schedule"),
        }

    def _compare(self, *names: str) -> None:
        """Refuse a state that an object does not hold as it is in the file."""
        assert self._state is not None
        held = {"module": encode_state(self.module.state_dict(), "module")}
        if self._built is not None:
            held = self.state()
        for name in names:
            difference = first_difference(self._state[name], held[name], name)
            if difference is not None:
                raise ConfigError(f"the state file is of another model or optimizer: {difference}")

    def _check_parameters(self) -> None:
        """Refuse parameters that the optimizer does not have: it would step others, and workers would never see it."""
        found = parameters_of(self.module, self.manifest)
        for entry, one, ours in zip(self.manifest.parameters, found, self._parameters, strict=True):
            if one is not ours or str(one.dtype) != f"torch.{entry.dtype}":
                raise ConfigError(
                    f'parameter "{entry.name}" of the server was replaced or became {one.dtype}; a job must leave the '
                    "module's tensors where they are, also in `evaluate`: copy the module first"
                )

    def _factor(self, share: Share, contents: Contents, clip_norm: float) -> float:
        """Return the factor that brings a push to a norm, 1 or less."""
        norm = norm_of(contents.parameters)
        clipped = 1.0 if clip_norm <= 0 or norm <= clip_norm else clip_norm / norm
        guarded = self._guard.factor(norm * clipped)
        if guarded < 1.0:
            self.scaled.append((share, guarded))
        return clipped * guarded

    def _set_gradients(self, mean: Tensor, present: Sequence[Sequence[bool] | None]) -> None:
        for at, (parameter, part) in enumerate(
            zip(self._parameters, self.manifest.parameter_slices, strict=True)
        ):
            has_gradient = any(one is None or one[at] for one in present)
            parameter.grad = mean[part].view(parameter.shape).to(parameter.dtype) if has_gradient else None

    @torch.no_grad()
    def _average_buffers(self, shares: Sequence[tuple[Share, Contents]]) -> None:
        """Floating buffers are averaged as the pushes are; of integers, such as counters, the greatest is taken."""
        sent = [
            (share, one.floats, one.integers)
            for share, one in shares
            if one.floats is not None and one.integers is not None
        ]
        if not sent or not self.manifest.buffers:
            return
        total = sum(share.push.samples for share, _, _ in sent)
        floats = mean_of([(share.push.samples, one) for share, one, _ in sent], total)
        integers = torch.stack([one for _, _, one in sent]).amax(0)
        load_buffers(self.module, self.manifest, floats, integers)


def mean_of(parts: Sequence[tuple[float, Tensor]], divisor: float, memory: Memory | None = None) -> Tensor:
    """Return the sum of factor times vector, in this order, divided once: in float64, and cast once to float32.

    Vectors of bfloat16 with equal factors are added in float32, and their sum is divided: what that leaves out is
    2^-15 of what the vectors themselves have left out, and it is three times as fast.

    Args:
        parts: Factors, and vectors float32 or bfloat16 [n].
        divisor: Divisor of the sum.
        memory: Memory for the result; None: new memory.
    """
    n = parts[0][1].numel()
    mean = from_bytes((memory or Memory(0)).take(4 * n), torch.float32)
    count = divisor / parts[0][0] if parts[0][0] else math.inf
    is_plain = (
        all(factor == parts[0][0] and one.dtype is torch.bfloat16 for factor, one in parts)
        and count.is_integer()
        and count < _MAX_EXACT
    )

    def sum_into(first: int, last: int) -> None:
        if is_plain:
            _sum_plain_into(mean, parts, count, first, last)
        else:
            _sum_into(mean, parts, divisor, first, last)

    # A multiple of what is summed at once, so that the pieces are the same for any number of threads.
    share = max(1, -(-n // (_THREADS * _CHUNK))) * _CHUNK
    ranges = [(begin, min(n, begin + share)) for begin in range(0, n, share)]
    if len(ranges) < 2:
        for one in ranges:
            sum_into(*one)
        return mean
    with ThreadPoolExecutor(_THREADS) as threads:
        for done in [threads.submit(sum_into, *one) for one in ranges]:
            done.result()
    return mean


@torch.no_grad()
def _sum_plain_into(
    mean: Tensor, parts: Sequence[tuple[float, Tensor]], count: float, first: int, last: int
) -> None:
    """Write the sum of vectors of bfloat16 divided by a count: the same bits with and without the native modules."""
    vectors, total = [one[first:last] for _, one in parts], mean[first:last]
    try:
        from ....kernels import reduce
    except ImportError:
        for begin in range(0, last - first, _CHUNK):
            piece = total[begin : begin + _CHUNK].copy_(vectors[0][begin : begin + _CHUNK])
            for one in vectors[1:]:
                piece += one[begin : begin + _CHUNK].float()
    else:
        reduce(vectors, total, scale=1.0)
    total /= count


@torch.no_grad()
def _sum_into(
    mean: Tensor, parts: Sequence[tuple[float, Tensor]], divisor: float, first: int, last: int
) -> None:
    total = torch.empty(min(last - first, _CHUNK), dtype=torch.float64, device="cpu")
    product = torch.empty_like(total)
    for begin in range(first, last, _CHUNK):
        end = min(last, begin + _CHUNK)
        piece, scaled = total[: end - begin].zero_(), product[: end - begin]
        for factor, vector in parts:
            # Not with `alpha`, which is a fused multiply-add on some machines and has other bits there.
            piece.add_(scaled.copy_(vector[begin:end]).mul_(factor))
        mean[begin:end] = piece.div_(divisor)


def module_state(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state dict of the module in a state of a trainer.

    Raises:
        ValueError: There is none.
    """
    module: OrderedDict[str, Any] = OrderedDict(decode_state(state["module"]))
    metadata = decode_state(state["metadata"])
    if metadata is not None:
        # `load_state_dict` reads versions of modules there.
        module._metadata = metadata  # type: ignore[attr-defined]
    return module


def load_exactly(optimizer: optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict without a change of any dtype or container.

    `Optimizer.load_state_dict` casts floating tensors to the dtype of their parameter, and makes containers anew from
    their elements. What an optimizer does in a `load_state_dict` of its own is left to it.

    Raises:
        KeyError: A parameter is missing.
        ValueError: The groups are others.
    """
    if type(optimizer).load_state_dict is not optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(state)
        return
    optimizer.load_state_dict({**state, "state": {}})
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    by_number = dict(zip(numbers, parameters, strict=True))
    for number, one in state["state"].items():
        optimizer.state[by_number.get(number, number)] = one


def _check_step(name: str, one: Any) -> None:
    """Refuse what takes a step only with arguments, such as a closure, before the first step."""
    if one is None:
        return
    try:
        inspect.signature(type(one).step).bind(one)
    except TypeError as error:
        raise ConfigError(
            f"step() of a {type(one).__name__} needs arguments ({error}), so it cannot be the {name} of the job: a "
            "parameter server has neither a closure nor a metric"
        ) from None


@contextlib.contextmanager
def _other_model() -> Iterator[None]:
    """Say what is wrong with a state file."""
    try:
        yield
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"the state file is of another model or optimizer: {error}") from None
