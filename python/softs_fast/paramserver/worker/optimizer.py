"""An optimizer of which the steps are taken by a parameter server."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn, optim

from ...errors import ConfigError, SoftsError
from ...user_code import text_of_error
from ..wire import answers
from ..wire.feedback import ErrorFeedback
from ..wire.header import Kind
from ..wire.invite import Invite
from ..wire.manifest import Manifest
from ..wire.messages import (
    MAX_REASON,
    Counted,
    Heartbeat,
    JoinAnswer,
    Leave,
    RunConfig,
    Stale,
    Summary,
    encode,
)
from ..wire.tensors import buffers_of, flattened, load_into, parameters_of
from .exchanges import Call
from .options import WorkerOptions
from .session import Session
from .weights import RemoteWeights

__all__ = ["Counts", "RemoteOptimizer"]

_log = logging.getLogger("softs_fast.paramserver")

#: Heartbeats within a lease: two may be lost.
_PER_LEASE = 3.0


@dataclass
class Counts:
    """What a worker has done so far.

    Attributes:
        counted: Pushes that the server took.
        stale: Pushes that it refused, because the round had ended.
        samples: Samples of the pushes that were counted.
        loss: Loss of the last push; NaN if it is not known.
    """

    counted: int = 0
    stale: int = 0
    samples: int = 0
    loss: float = math.nan


class RemoteOptimizer(optim.Optimizer):
    """Pushes what a module has learned, and takes the weights that the server makes of all pushes.

    `step` sends the gradients, waits until the round is closed, and writes the new weights into the module. With
    local steps, which the server chooses, `step` is one of a local optimizer, and only every H-th one exchanges weights.
    The first weights are taken when the optimizer is made. Workers with other weights than the server's never occur:
    gradients of old weights are refused, and then the new weights are taken all the same.

    The learning rate is the server's. `lr` of a parameter group is a factor of the gradient that is sent, 1 unless a
    scheduler changes it; with local steps the groups are those of the local optimizer.

    Args:
        module: Module of which all parameters with `requires_grad` are trained, on any device.
        invite: Line that the server printed, or ``softs://HOST[:PORT][,HOST2]/JOB?token_file=FILE``.
        options: WorkerOptions of the worker.
        local_optimizer: Function that takes parameters and returns the local optimizer; used if the server wants local steps.
        on_progress: Function that takes a text for people now and then, such as "push 12 %".

    Raises:
        ConfigError: the invite is malformed or unknown, the model is not that of the server, or urllib3 is missing.
        PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
        WireError: the server does not speak this protocol.

    Source: local steps with an optimizer on the server, FedOpt (Reddi et al. 2021), algorithm 2, and DiLoCo (Douillard
        et al. 2023), algorithm 1.
    """

    def __init__(
        self,
        module: nn.Module,
        invite: Invite | str,
        options: WorkerOptions | None = None,
        *,
        local_optimizer: Callable[[Iterable[nn.Parameter]], optim.Optimizer] | None = None,
        on_progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        manifest = Manifest.of(module)
        parsed = Invite.parse(invite) if isinstance(invite, str) else invite
        parameters = parameters_of(module, manifest)
        super().__init__(parameters, {"lr": 1.0})
        self.module = module
        self.manifest = manifest
        self.counts = Counts()
        self._parameters = parameters
        self._samples = 0
        self._loss_sum: float | Tensor = 0.0
        self._n_local = 0
        #: Which parameters have had a gradient in the local steps of the next push.
        self._has_gradient = [False] * len(parameters)
        self._reported: tuple[int, float] | None = None
        #: The connection, for other requests of this worker.
        self.session = Session(parsed, manifest, options or WorkerOptions())
        #: Bytes, failures and joins so far.
        self.traffic = self.session.traffic
        #: Number of the lease of which the samples of the next push are; 0 for none.
        self.lease = 0
        self._heartbeats: threading.Thread | None = None
        self._is_leaving = threading.Event()
        self._local: optim.Optimizer | None = None
        try:
            self.session.join()
            heartbeats = threading.Thread(
                target=_renew, args=(self.session, self._is_leaving), name="softs-heartbeats", daemon=True
            )
            heartbeats.start()
            self._heartbeats = heartbeats
            self._weights = RemoteWeights(self.session, on_progress)
            if self.config.local_steps:
                if local_optimizer is None:
                    raise ConfigError(
                        f"the server wants {self.config.local_steps} local steps; pass local_optimizer=, such as "
                        "lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
                    )
                self._local = local_optimizer(parameters)
                # Schedulers, and loops that write the learning rate, act on the local optimizer.
                self.param_groups = self._local.param_groups
                self.defaults = self._local.defaults
            self._take_weights()
        except BaseException as error:
            self._close(error)
            raise

    @property
    def config(self) -> RunConfig:
        """What the server says about the run."""
        return self.session.joined.config

    @property
    def joined(self) -> JoinAnswer:
        """Rank, world size and id that the server has given."""
        return self.session.joined

    @property
    def version(self) -> tuple[int, int]:
        """Timeline and version of the weights in the module."""
        return self._weights.timeline, self._weights.version

    @property
    def summary(self) -> Summary | None:
        """How the run ended; None while it goes on."""
        return self._weights.summary

    @property
    def is_over(self) -> bool:
        """Whether the run is over: the module has the weights of the last step, and no other can follow."""
        return self._weights.summary is not None

    @property
    def feedback(self) -> ErrorFeedback:
        """What pushes have left out."""
        return self._weights.feedback

    @property
    def push_codec(self) -> str:
        """Of the next push."""
        return self._weights.push_codec

    def report(self, samples: int, loss: float = math.nan) -> None:
        """Say of how many samples the next step is, and their mean loss.

        Without it a step counts as of the server's batch size, and the loss is what the closure returns.

        Args:
            samples: Samples of this process, 1 or more.
            loss: Mean loss of the samples; NaN if it is not known.

        Raises:
            ConfigError: there are no samples.
        """
        if samples < 1:
            raise ConfigError(f"a step is of {samples} samples; need 1 or more, or no step")
        self._reported = (samples, loss)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Send a gradient, or take a local step; then, if a push was due, take the server's weights.

        A push that the server refuses as stale is computed again from the new weights if there is a closure, and else
        dropped.

        Args:
            closure: clears the gradients, computes the loss and the gradients, and returns the loss.

        Returns:
            What the closure returned; None without one.

        Raises:
            ConfigError: the run is over, the server refuses the worker for good, or a parameter was replaced or reshaped.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
            WireError: the gradient is not finite, or does not fit the server's model.
        """
        if self._weights.summary is not None:
            raise ConfigError(
                f"the run is over at version {self._weights.summary.version}; look at `is_over` after each step"
            )
        self._check_parameters()
        self.session.progress += 1
        if self._local is not None:
            return self._step_locally(self._local, closure)
        samples, reported = self._taken_report()
        while True:
            with torch.enable_grad():
                loss = None if closure is None else closure()
            # One number leaves the device, once per push.
            mean = float(loss) if loss is not None and math.isnan(reported) else reported
            present = [one.grad is not None for one in self._parameters]
            result = self._push(self._gradient(), present, Kind.GRADIENT, samples, mean)
            if closure is None or not isinstance(result, Stale) or self.is_over:
                return loss

    def pause(self) -> None:
        """Tell the server that this worker does nothing for now: its data go to others, and no round waits for it.

        Raises:
            ConfigError: the server refuses the worker for good.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
            WireError: the server does not understand it.
        """
        self.session.run(Call("POST", answers.PAUSE, b"{}"))

    def resume(self) -> None:
        """Take part again, from the server's present weights.

        Raises:
            ConfigError: the server refuses the worker for good.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
            WireError: the server does not understand it.
        """
        self.session.run(Call("POST", answers.RESUME, b"{}"))

    def finish(self) -> None:
        """Take the weights of the last step of a run that has ended."""
        self._take_weights()

    def close(self) -> None:
        """Leave the run, and close the connections. A worker that has left may join again with a new optimizer."""
        self._close(None)

    def __enter__(self) -> RemoteOptimizer:
        """Return the optimizer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the optimizer; an exception of the program is told to the server, which names it to the owner."""
        self._close(error)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the local optimizer; without one, that of the parameter groups. Weights are the server's."""
        return self._local.state_dict() if self._local is not None else super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Raises:
            ValueError: it is of other parameter groups.
        """
        if self._local is None:
            super().load_state_dict(state_dict)
            return
        self._local.load_state_dict(state_dict)
        self.param_groups = self._local.param_groups

    def _step_locally(self, local: optim.Optimizer, closure: Callable[[], Any] | None) -> Any:
        samples, reported = self._taken_report()
        mean: Any = reported
        loss: Any = local.step(closure) if closure is not None else local.step()
        if loss is not None and math.isnan(reported):
            # Summed on the device: a number that leaves it costs as much as the step.
            mean = loss.detach() if isinstance(loss, Tensor) else loss
        for at, one in enumerate(self._parameters):
            self._has_gradient[at] |= one.grad is not None
        self._samples += samples
        self._loss_sum = self._loss_sum + samples * mean
        self._n_local += 1
        if self._n_local >= self.config.local_steps:
            contents = self._weights.contents
            assert contents is not None
            end = flattened(self._parameters, torch.float32)
            # As a gradient has it: the server steps against it.
            difference = contents.parameters - end
            # A local optimizer may drop gradients within its step.
            present = [
                seen or bool(difference[part].any())
                for seen, part in zip(self._has_gradient, self.manifest.parameter_slices, strict=True)
            ]
            mean = float(self._loss_sum) / self._samples
            self._push([difference], present, Kind.DIFFERENCE, self._samples, mean)
        return loss

    def _push(
        self, pieces: list[Tensor], present: list[bool], kind: Kind, samples: int, loss: float
    ) -> Counted | Stale | Summary:
        config = self.config
        if config.clip_norm:
            norm = math.hypot(*(float(one.norm()) for one in pieces))
            if norm > config.clip_norm:
                pieces = [one * (config.clip_norm / norm) for one in pieces]
        loss = loss if math.isfinite(loss) else math.nan
        buffers = buffers_of(self.module, self.manifest) if config.buffer_sync else None
        flags = None if all(present) else tuple(present)
        result = self._weights.push(pieces, buffers, kind, samples, loss, flags, self.lease)
        self._samples, self._loss_sum, self._n_local = 0, 0.0, 0
        self._has_gradient = [False] * len(present)
        if isinstance(result, Counted):
            self.counts.counted += 1
            self.counts.samples += samples
            self.counts.loss = loss
        elif isinstance(result, Stale):
            self.counts.stale += 1
        self._take_weights()
        return result

    def _close(self, error: BaseException | None) -> None:
        try:
            self._leave(error)
        finally:
            self.session.close()

    def _leave(self, error: BaseException | None = None) -> None:
        """Tell the server, once, that no more will be asked: at the end of a run it waits for that."""
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is None:
            return
        # One that is in a request ends with it; closing the session ends that.
        self._is_leaving.set()
        try:
            self.session.attempt(Call("POST", answers.LEAVE, encode(Leave(_reason(error)))))
        except SoftsError:
            # The lease ends by itself.
            _log.debug("the server was not told that the worker leaves")
        finally:
            heartbeats.join(5.0)

    def _take_weights(self) -> None:
        if not self._weights.pull():
            self._leave()
        if self._weights.contents is not None:
            load_into(self.module, self.manifest, self._weights.contents)

    def _check_parameters(self) -> None:
        """Refuse parameters other than those of the start: the groups have the old ones, which nothing trains."""
        found = parameters_of(self.module, self.manifest)
        for entry, one, ours in zip(self.manifest.parameters, found, self._parameters, strict=True):
            if one is not ours:
                raise ConfigError(
                    f'parameter "{entry.name}" was replaced after this optimizer was made, such as by '
                    "load_state_dict(assign=True); make a new RemoteOptimizer after that"
                )

    def _taken_report(self) -> tuple[int, float]:
        """Samples and loss of this step: as reported, or the batch size and NaN."""
        reported, self._reported = self._reported, None
        return reported if reported is not None else (self.config.batch_size, math.nan)

    def _gradient(self) -> list[Tensor]:
        """All gradients, float32 [n] each, on the CPU, in the manifest's order; the tensors themselves where that can be."""
        factors = {id(one): float(group["lr"]) for group in self.param_groups for one in group["params"]}
        pieces = []
        for one in self._parameters:
            if one.grad is None:
                pieces.append(torch.zeros(one.numel(), dtype=torch.float32, device="cpu"))
                continue
            grad = one.grad if one.grad.layout is torch.strided else one.grad.to_dense()
            # On the host first: devices have not every dtype.
            piece = grad.detach().cpu().reshape(-1).float()
            factor = factors[id(one)]
            pieces.append(piece if factor == 1.0 else piece * factor)
        return pieces


def _renew(session: Session, is_over: threading.Event) -> None:
    """Renew the lease of a session until an event is set."""
    while not is_over.wait(session.joined.config.lost_after_s / _PER_LEASE):
        try:
            session.attempt(Call("POST", answers.HEARTBEAT, encode(Heartbeat(session.progress))))
        except SoftsError as error:
            # The main thread sees the same with its next request, and knows what to do.
            _log.debug("heartbeat: %s", error)


def _reason(error: BaseException | None) -> str:
    """Return type and text of an exception as a line for the owner; "" for none, and for one that a person wants."""
    text = text_of_error(error) if isinstance(error, Exception) else ""
    return " ".join(text.replace("\0", " ").split())[:MAX_REASON]
