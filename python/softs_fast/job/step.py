"""A step of a job: this rank's micro-batches, their gradients, and what became of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import torch

from ..coordination.job import Report
from ..coordination.node import TrainingState, WorkerNode
from ..errors import ConfigError, PeerLost
from ..loader import NumberedBatches
from .feed import Feed, MicroBatch
from .group_worker import GroupWorker
from .ledger import share
from .position import Position
from .retained import Retained
from .saver import Saver

__all__ = ["JobStep", "Parts", "random_of"]

logger = logging.getLogger(__name__)

#: A rank that waits for samples reports so often, seconds.
_REPORT_S = 1.0


class Parts:
    """What the steps of a job have in common.

    Args:
        worker: Worker that reduces and applies gradients.
        position: Position that travels with the weights.
        batches: Batches of the samples.
        state: Weights and optimizer.
        device: Device of the weights.
        losses: Where losses of a step are summed, float32 [].
        saver: Writer of checkpoints; None without any.
    """

    def __init__(
        self,
        worker: WorkerNode | GroupWorker,
        position: Position,
        batches: NumberedBatches,
        state: TrainingState,
        device: torch.device,
        losses: torch.Tensor,
        saver: Saver | None,
    ) -> None:
        self.worker = worker
        self.state = state
        # Between a forward and a backward pass the modules of FSDP2 show other ones.
        self.parameters = list(state.model.parameters())
        self.position = position
        self.batches = batches
        self.begin_random = random_of(device)
        self.saver = saver
        #: Losses of the present step; ranks reduce them with the gradients.
        self.losses = losses
        self.feed = Feed()
        #: Whether the program is in the block of a step.
        self.is_in_block = False
        #: Refuses steps of the optimizer there.
        self.guard = state.optimizer.register_step_pre_hook(self._refuse_step)
        # Of the reports: samples that were trained, the time in which they were waited for, and since when others are.
        self._n_samples, self._waiting_s, self._began_s = 0, 0.0, time.monotonic()
        self._lacks_since_s: float | None = None
        self._told_s = 0.0
        # With ranks that may be lost, which end the steps of others.
        self._node = worker if isinstance(worker, WorkerNode) else None
        if self._node is not None:
            self._node.report = self.report
        self._place = (-1, 0)
        # Whether the batches go to other numbers with the next one that is waited for.
        self._is_aimed = False
        # Batches of the step that is not committed, by their first number.
        self._taken: dict[int, Retained] = {}

    def report(self) -> Report:
        """Return what the coordinator shows of this rank."""
        now_s = time.monotonic()
        lacks_s = 0.0 if self._lacks_since_s is None else now_s - self._lacks_since_s
        saved = None if self.saver is None else self.saver.saved()
        return Report(self._n_samples, self._waiting_s + lacks_s, now_s - self._began_s, lacks_s, saved)

    def take(self, due: MicroBatch) -> Any | None:
        """Return the micro-batch that is due, or None once the epoch of the step is over.

        One that was handed out before, in a step that a lost rank has ended, is handed out again as it was.
        """
        first = due.numbers.start
        retained = self._taken.get(first)
        if retained is not None and not retained.is_changed():
            batch = retained.views()
        else:
            # Not where it is: batches may have been handed out of `_taken`, or lost to an error that came with them.
            self.batches.go_to(self.feed.place)
            batch = self._wait()
            if batch is None:
                return None
            # Alone a step comes again only after an error of its own, and has its samples made again.
            if self._node is not None:
                self._taken[first] = Retained(batch)
            if self._is_aimed:
                self._tell_kept()
        self._n_samples += len(due.numbers)
        return batch

    def _tell_kept(self) -> None:
        kept, dropped = self.batches.kept
        if kept + dropped:
            logger.info("this rank still trains %d of %d samples that it had ordered", kept, kept + dropped)
        self._is_aimed = False

    def _wait(self) -> Any | None:
        self._lacks_since_s = self._told_s = time.monotonic()
        try:
            return self.batches.take(self._is_over)
        finally:
            self._waiting_s += time.monotonic() - self._lacks_since_s
            self._lacks_since_s = None

    def _is_over(self) -> bool:
        """Return whether the epoch of the step is over; report a long wait meanwhile."""
        if self._node is not None and time.monotonic() > self._told_s + _REPORT_S:
            self._told_s = time.monotonic()
            self._node.tell()
        return bool(self.worker.not_ready)

    def begin(self, step: int, product: str, numbers: range) -> None:
        """Begin a step, from 0, with its samples."""
        if product != self.batches.product:
            self.batches.switch(product)
            self._taken.clear()
        ledger, rank, size = self.position.ledger, self.worker.rank, self.worker.size
        aim = self.feed.begin(ledger, step, rank, size)
        if aim is not None:
            self.batches.aim(*aim)
            self._is_aimed = True
        self._taken = {first: one for first, one in self._taken.items() if first in numbers}
        self.tell_place(rank, size, ledger.n_micro_batches, self.feed.n_due)

    def _refuse_step(self, optimizer: object, args: object, kwargs: object) -> None:
        if self.is_in_block:
            raise ConfigError(
                "the optimizer makes a step in the block of a step of a job, which applies the gradients of all ranks at its "
                "end: leave optimizer.step() out"
            )

    def tell_place(self, rank: int, size: int, n_micro_batches: int, own: int) -> None:
        """Log which part of a step this rank has, if that has changed."""
        if (rank, size) == self._place:
            return
        self._place = (rank, size)
        if size > n_micro_batches:
            logger.warning(
                "a step has %d micro-batches, and the job %d ranks: %d of them only wait, and have the weights if another "
                "one is lost; start %d ranks at most, or make micro-batches smaller",
                n_micro_batches,
                size,
                size - n_micro_batches,
                n_micro_batches,
            )
        share = n_micro_batches / (size * -(-n_micro_batches // size))
        logger.info(
            "rank %d of %d trains %d of the %d micro-batches of a step; ranks train %.0f %% of the time, and else wait for "
            "each other",
            rank,
            size,
            own,
            n_micro_batches,
            100 * share,
        )


class JobStep:
    """A step: `with step:`, and in it each of `batches` and one `backward` for it. The end of the block commits the step.

    Attributes:
        number: Number of the step, from 1; the number of committed steps after it.
        product: Product of the samples.
        numbers: Numbers of the samples of the step, over all ranks.
        is_committed: Whether the step was applied, known after its end. If not, the next step has the same numbers.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._worker = parts.worker
        self._inner = parts.worker.step()
        self.number = 0
        self.product = ""
        self.numbers = range(0)
        self.is_committed = False
        self._scale = 1.0
        # Of this rank's micro-batches.
        self._seeds: list[int] = []
        self._n_own = self._n_taken = self._n_backward = 0
        self._losses = parts.losses
        # A parameter that has a gradient of this step.
        self._graded: torch.Tensor | None = None

    @property
    def was_entered(self) -> bool:
        """Whether it has begun."""
        return self.number > 0

    @property
    def loss(self) -> float:
        """Mean of the losses of all micro-batches of the step, on all ranks; known after its end."""
        return float(self._losses)

    def batches(self) -> Iterator[Any]:
        """Yield this rank's micro-batches, each `{name: dtype [micro_batch_size, *shape]}`.

        Before each one, torch's random numbers begin anew, by the number of its first sample: so dropout is the same on
        whatever rank, and when a step is made again.

        Raises:
            PeerLost: The epoch of the step is over; the block takes it, and the step is made again.
            GeneratorFailed: A sample cannot be made.
        """
        parts = self._parts
        if not self.was_entered:
            raise ConfigError("the step was not begun: call step.batches() in a block `with step:`")
        while (due := parts.feed.due) is not None:
            if self._n_backward < self._n_taken:
                raise ConfigError(_incomplete(self.number, self._n_backward, self._n_taken))
            batch = parts.take(due)
            if batch is None:
                raise PeerLost(f"epoch {self._inner.epoch} is over: {self._worker.not_ready}")
            parts.feed.took()
            parts.begin_random(self._seeds[self._n_taken])
            self._n_taken += 1
            yield batch

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a micro-batch; once for each.

        Args:
            loss: Mean of the losses of its samples, dtype [].

        Raises:
            ConfigError: It is no such loss, or the micro-batch has had its loss.
        """
        if not isinstance(loss, torch.Tensor) or loss.dim() or loss.is_complex():
            is_tensor = isinstance(loss, torch.Tensor)
            found = f"shape {list(loss.shape)} of {loss.dtype}" if is_tensor else type(loss).__name__
            raise ConfigError(
                f"a loss must be one real number, a tensor of shape [], got {found}: give the mean over the samples, such as "
                "loss.mean()"
            )
        if self._n_backward == self._n_taken:
            raise ConfigError(
                f"step {self.number} has {self._n_taken} micro-batches so far, and step.backward() is called another time: "
                "call it once for each, with the sum of what is to be minimised"
            )
        self._check_gradients()
        # Workers reduce gradients to a mean over ranks; that of micro-batches does not depend on how many each has. These are
        # the gradients of `loss * scale`, without its two kernels.
        loss.backward(torch.full_like(loss, self._scale))  # type: ignore[no-untyped-call]
        if self._graded is None:
            self._graded = self._find_graded()
        (self._losses.add_ if self._n_backward else self._losses.copy_)(loss.detach())
        self._n_backward += 1

    def __enter__(self) -> Self:
        """Wait for an epoch, and begin the step."""
        if self.was_entered or self._parts.feed.phase != "idle":
            raise ConfigError(
                "a step begins in another one, or for the second time: use each step of job.steps() once"
            )
        inner = self._inner
        inner.__enter__()
        try:
            self.number = inner.number
            self._begin()
        except BaseException as error:
            inner.__exit__(type(error), error, None)
            raise
        return self

    def _begin(self) -> None:
        parts, step = self._parts, self.number - 1
        position = parts.position
        if position.committed != step:
            raise ConfigError(
                f"the weights have {step} steps, and their position in the samples {position.committed}"
            )
        self.product, self.numbers = position.ledger.product_of(step), position.ledger.numbers(step)
        rank, size, n = self._worker.rank, self._worker.size, position.ledger.n_micro_batches
        self._scale = size / n
        self._seeds = [position.seed_of(step, place) for place in share(n, rank, size)]
        parts.begin(step, self.product, self.numbers)
        self._n_own = parts.feed.n_due
        if not self._n_own:
            self._losses.zero_()
        # Last: a step that has not begun has no end that resets it.
        parts.is_in_block = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Reduce the gradients, and apply them on all ranks; a rank that was lost is no error."""
        parts, inner = self._parts, self._inner
        parts.is_in_block = False
        if error is None:
            try:
                self._check_complete()
            except ConfigError as failure:  # others must learn of it
                error = failure
        try:
            is_taken = inner.__exit__(None if error is None else type(error), error, trace)
        finally:
            self.is_committed = inner.is_committed
            if self.is_committed:
                parts.feed.committed()
                if parts.saver is not None:
                    parts.saver.committed(self._worker.rank, self._worker.size)
            else:
                parts.feed.fenced()
                parts.feed.dropped()
            # Ranks have the mean of their sums. Last: a device may refuse it.
            self._losses = self._losses * self._scale
        if error is not None and kind is None and not is_taken:
            raise error
        return is_taken

    def _check_complete(self) -> None:
        if self._n_backward != self._n_own:
            raise ConfigError(_incomplete(self.number, self._n_backward, self._n_own))
        self._check_gradients()

    def _find_graded(self) -> torch.Tensor | None:
        return next((one for one in self._parts.parameters if one.grad is not None), None)

    def _check_gradients(self) -> None:
        if self._graded is not None and self._graded.grad is None and self._find_graded() is None:
            raise ConfigError(
                f"the gradients of {self._n_backward} micro-batches of step {self.number} are gone: call no zero_grad() in "
                "the block of a step, which begins without gradients"
            )


def _incomplete(number: int, n_backward: int, n: int) -> str:
    return (
        f"step {number} has the gradients of {n_backward} of {n} micro-batches, so some samples would count as trained: "
        "call step.backward(loss) once for each of step.batches()"
    )


def random_of(device: torch.device) -> Callable[[int], object]:
    """Return what begins the random numbers of the CPU and of a device anew, with a seed.

    `torch.manual_seed` also keeps a call, with its stack, for each kind of device that is not used: 1 ms, and memory that is
    never freed.
    """
    on_cpu = torch.default_generator.manual_seed
    if device.type in ("cpu", "meta"):
        return on_cpu
    on_device = getattr(torch, device.type).manual_seed_all
    return lambda seed: (on_cpu(seed), on_device(seed))
