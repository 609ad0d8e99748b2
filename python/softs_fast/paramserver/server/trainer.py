"""The model and its optimizer: pushes become a step. It runs in one thread, one call at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, optim

from ...errors import ConfigError
from ..job import Job
from ..rounds.events import Share
from ..wire.manifest import Manifest
from ..wire.memory import Memory
from ..wire.tensors import Contents, from_bytes, is_finite, load_buffers, load_into, of_module
from .trimmed import trimmed_greatest, trimmed_mean_of

__all__ = ["Trainer", "mean_of"]

#: Vectors of which the memory is used again: means, weights, and bases of XOR.
_KEPT = 8

#: Elements that are summed at once: their float64 sums stay in the cache, and torch uses one thread for so few. (Measured
#: for 4 vectors of 22 M: 1 << 14 is seven times as fast as 1 << 16, and 1 << 15 a little faster still.)
_CHUNK = 1 << 15
#: That sum: more than these would wait for memory.
_THREADS = min(4, os.cpu_count() or 1)


class Trainer:
    """Master weights, buffers, optimizer, schedule.

    Args:
        job: what is trained.
        state: of a trainer before this one; None for none. Its weights are taken now, and the rest of it by `prepare`,
            which must be called before a step: to make a process's first optimizer, torch imports modules for a second.

    Raises:
        ConfigError: the model has nothing to train or is not that of the state, or the optimizer has other parameters.
    """

    def __init__(self, job: Job, state: dict[str, Any] | None = None) -> None:
        self._job = job
        self._memory = Memory(_KEPT)
        self.module = job.model()
        self.manifest = Manifest.of(self.module)
        named = dict(self.module.named_parameters())
        self._parameters = [named[entry.name] for entry in self.manifest.parameters]
        if any(not one.is_cpu for one in self._parameters):
            raise ConfigError("the model of the job is not on the CPU, where a parameter server has it")
        self._state = state
        self._built: tuple[optim.Optimizer, optim.lr_scheduler.LRScheduler | None] | None = None
        if state is None:
            self.prepare()
        else:
            with _other_model():
                self.module.load_state_dict(state["module"])

    def prepare(self) -> None:
        """Make the optimizer and the schedule, unless they are there.

        Raises:
            ConfigError: they are not those of the state.
        """
        if self._built is not None:
            return
        optimizer = self._job.optimizer(self._parameters)
        schedule = None if self._job.schedule is None else self._job.schedule(optimizer)
        if self._state is not None:
            with _other_model():
                optimizer.load_state_dict(self._state["optimizer"])
                if schedule is not None and self._state["schedule"] is not None:
                    schedule.load_state_dict(self._state["schedule"])
        self._built, self._state = (optimizer, schedule), None

    def contents(self) -> Contents:
        """Return copies of weights and buffers, as frames have them."""
        return of_module(self.module, self.manifest, self._memory)

    def step(
        self,
        shares: Sequence[tuple[Share, Contents]],
        rate_factor: float,
        clip_norm: float,
        before: Contents,
        trim: int | None = None,
    ) -> tuple[bool, Contents]:
        """Average pushes in this order, and have the optimizer do a step.

        Sums are float64, and the mean is cast once to float32, so the same pushes make the same bits.

        Args:
            shares: pushes, with their weights.
            rate_factor: of the learning rate of this step.
            clip_norm: greatest norm of a push; 0 for any.
            before: the weights so far.
            trim: values of each element that are left out on each side; None: none, and the weights of the pushes hold.

        Returns:
            Whether the result is finite, and the weights after the step; those of before if it is not.

        Source: Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.1, for the factor of the rate.
        """
        if trim is None:
            mean = mean_of(
                [(share.weight * _clip(one, clip_norm), one.parameters) for share, one in shares],
                self._memory,
            )
        else:
            mean = trimmed_mean_of([(_clip(one, clip_norm), one.parameters) for _, one in shares], trim)
        if not is_finite(mean):
            return False, before
        begin = 0
        for parameter in self._parameters:
            piece = mean[begin : begin + parameter.numel()].view(parameter.shape)
            parameter.grad = piece.to(parameter.dtype)
            begin += parameter.numel()
        optimizer, schedule = self._prepared()
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * rate_factor
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for parameter in self._parameters:
            parameter.grad = None
        self._average_buffers(shares, trim)
        if schedule is not None:
            schedule.step()
        after = self.contents()
        if not is_finite(after.parameters):
            load_into(self.module, self.manifest, before)
            return False, before
        return True, after

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
        """Return what a later trainer needs."""
        optimizer, schedule = self._prepared()
        return {
            "module": self.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": None if schedule is None else schedule.state_dict(),
        }

    def _prepared(self) -> tuple[optim.Optimizer, optim.lr_scheduler.LRScheduler | None]:
        self.prepare()
        assert self._built is not None
        return self._built

    @torch.no_grad()
    def _average_buffers(self, shares: Sequence[tuple[Share, Contents]], trim: int | None) -> None:
        """Floating buffers are averaged as the pushes are; of integers, such as counters, the greatest is taken."""
        sent = [(share, one) for share, one in shares if one.floats is not None and one.integers is not None]
        if not sent or not self.manifest.buffers:
            return
        total = sum(share.samples for share, _ in sent)
        weighted = [(share.samples / total, one.floats) for share, one in sent if one.floats is not None]
        counters = [one.integers for _, one in sent if one.integers is not None]
        if trim is None:
            floats, integers = mean_of(weighted), torch.stack(counters).amax(0)
        else:
            # Some pushes may be without buffers.
            trim = min(trim, (len(sent) - 1) // 2)
            floats = trimmed_mean_of([(1.0, one) for _, one in weighted], trim)
            integers = trimmed_greatest(counters, trim)
        if not is_finite(floats):
            return
        load_buffers(self.module, self.manifest, floats, integers)


def mean_of(parts: Sequence[tuple[float, Tensor]], memory: Memory | None = None) -> Tensor:
    """Return the sum of factor times vector, in this order, in float64 and cast once to float32.

    Vectors of bfloat16 with equal factors are added in float32, and their sum is multiplied: what that leaves out is
    2^-15 of what the vectors themselves have left out, and it is three times as fast.

    Args:
        parts: factors, and vectors float32 or bfloat16 [n].
        memory: for the result; None for new one.
    """
    n = parts[0][1].numel()
    mean = (
        torch.empty(n, dtype=torch.float32, device="cpu")
        if memory is None
        else from_bytes(memory.take(4 * n), torch.float32)
    )
    is_plain = all(factor == parts[0][0] and one.dtype is torch.bfloat16 for factor, one in parts)
    sum_into = _sum_plain_into if is_plain else _sum_into
    # A multiple of what is summed at once, so that the pieces are the same for any number of threads.
    share = max(1, -(-n // (_THREADS * _CHUNK))) * _CHUNK
    ranges = [(begin, min(n, begin + share)) for begin in range(0, n, share)]
    if len(ranges) < 2:
        for one in ranges:
            sum_into(mean, parts, *one)
        return mean
    with ThreadPoolExecutor(_THREADS) as threads:
        for done in [threads.submit(sum_into, mean, parts, *one) for one in ranges]:
            done.result()
    return mean


@torch.no_grad()
def _sum_plain_into(mean: Tensor, parts: Sequence[tuple[float, Tensor]], first: int, last: int) -> None:
    """Write the sum of equal factors times vectors of bfloat16: the same bits with and without the native modules."""
    vectors, total = [one[first:last] for _, one in parts], mean[first:last]
    try:
        from ...kernels import reduce
    except ImportError:
        for begin in range(0, last - first, _CHUNK):
            pieces = [one[begin : begin + _CHUNK] for one in vectors]
            piece = total[begin : begin + _CHUNK].copy_(pieces[0])
            for one in pieces[1:]:
                piece += one.float()
            piece *= parts[0][0]
    else:
        reduce(vectors, total, scale=parts[0][0])


@torch.no_grad()
def _sum_into(mean: Tensor, parts: Sequence[tuple[float, Tensor]], first: int, last: int) -> None:
    total = torch.empty(min(last - first, _CHUNK), dtype=torch.float64)
    product = torch.empty_like(total)
    for begin in range(first, last, _CHUNK):
        end = min(last, begin + _CHUNK)
        piece, scaled = total[: end - begin].zero_(), product[: end - begin]
        for factor, vector in parts:
            # Not with `alpha`, which is a fused multiply-add on some machines and has other bits there.
            piece.add_(scaled.copy_(vector[begin:end]).mul_(factor))
        mean[begin:end] = piece


@contextlib.contextmanager
def _other_model() -> Iterator[None]:
    """Say what is wrong with a state file."""
    try:
        yield
    except (KeyError, RuntimeError, ValueError) as error:
        raise ConfigError(f"the state file is of another model or optimizer: {error}") from None


def _clip(contents: Contents, clip_norm: float) -> float:
    """Return the factor that brings a push to a norm, 1 or less."""
    if clip_norm <= 0:
        return 1.0
    norm = float(torch.linalg.vector_norm(contents.parameters, dtype=torch.float64))
    return 1.0 if norm <= clip_norm else clip_norm / norm
