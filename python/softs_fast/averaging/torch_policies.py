"""The policies over torch.distributed, and what those over MPI have in common with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from softs_fast.averaging.board import Board, Event
from softs_fast.averaging.decide import Rules, Strategy
from softs_fast.averaging.matching import Found, agree
from softs_fast.averaging.meeting import meet_in_group
from softs_fast.averaging.reduction import average_in_place
from softs_fast.averaging.schedule import Schedule
from softs_fast.averaging.selective import SelectiveAveraging
from softs_fast.averaging.takeover import Takeover
from softs_fast.averaging.timed_board import TimedBoard, Timing
from softs_fast.collectives import TorchStrategy
from softs_fast.errors import ConfigError

ModelBuilder = Callable[[], tuple[torch.nn.Module, Optimizer | None]]
Result = tuple[torch.nn.Module, Optimizer | None, dict[str, Any]]

# What is measured, by the names of the page.
_READ = "sa get_params_from_donors"
_CONVERT = "sa param_list_to_dict_convert"
_BUILD = "sa new_agent_model_rebuild"
_PUBLISH = "sa copy_params_to_buf"


class SpawnPolicy(ABC):
    """A policy that may change weights in each iteration.

    Args:
        average_every: iterations from one time to the next, at least 1; iteration 0 counts.
    """

    def __init__(self, average_every: int) -> None:
        self.average_every = max(1, int(average_every))

    @abstractmethod
    def __call__(
        self,
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None = None,
        group: Any = None,
    ) -> Result:
        """Return the model and the optimizer to go on with, and what was done, as flat values for a log."""

    def shutdown(self) -> None:
        """Release what the policy holds; a second call does nothing."""
        return


class AverageAllPolicy(SpawnPolicy):
    """Averages the parameters of all ranks of a group of torch.distributed; buffers and optimizers keep theirs.

    Example:
        >>> import torch
        >>> from softs_fast.averaging.spawn_policy import AverageAllPolicy
        >>> model = torch.nn.Linear(2, 1)
        >>> policy = AverageAllPolicy(average_every=10)
        >>> _, _, info = policy(0, model, torch.optim.SGD(model.parameters()))
        >>> info  # torch.distributed is not initialized
        {}
    """

    def __call__(
        self,
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None = None,
        group: Any = None,
    ) -> Result:
        """Average in iterations that `average_every` divides; a call of all ranks of the group then.

        Args:
            iteration: Number of the iteration, from 0.
            model: Model to average, in place.
            optimizer: Optimizer, returned as it is.
            local_metric: Not used.
            group: Group of the ranks; None for all.

        Raises:
            PeerLost: a rank was lost; the weights are as they were.
            ConfigError: the models of the ranks differ.
        """
        if not _is_distributed():
            return model, optimizer, {}
        if iteration % self.average_every or dist.get_rank(group) < 0:
            return model, optimizer, {"averaged_this_iteration": False}
        strategy = TorchStrategy(group if group is not None else dist.group.WORLD)
        found = Found.of(model, "own")
        average_in_place(strategy, found.pick(agree(strategy, found).weights))
        return model, optimizer, {"averaged_this_iteration": True}


class SelectivePolicy(SpawnPolicy):
    """What all selective policies share: one engine, made at the first call.

    Attributes:
        timing: seconds of the last calls, by what was done.
    """

    def __init__(
        self,
        model_builder: ModelBuilder,
        average_every: int,
        rules: Rules,
        *,
        momentum: float,
        in_place: bool,
        seed: int,
    ) -> None:
        super().__init__(average_every)
        self.replacement_ratio = rules.replace_worst
        self.averaging_strategy = rules.strategy
        self.momentum = momentum
        self.timing = Timing((_READ, _CONVERT, _BUILD, _PUBLISH))
        self._model_builder = model_builder
        self._rules = rules
        self._takeover = Takeover(momentum=momentum, optimizer_state="fresh", in_place=in_place)
        self._schedule = Schedule(publish_every=self.average_every, seed=seed)
        self._engine: SelectiveAveraging | None = None

    def shutdown(self) -> None:
        """Leave the other ranks; a second call, and one before the first iteration, do nothing."""
        if self._engine is not None:
            self._engine.shutdown()

    def _run(
        self,
        board: Callable[[], Board],
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None,
        *,
        publish: bool,
    ) -> tuple[SelectiveAveraging, Event | None]:
        """Pass an iteration to the engine."""
        if self._engine is None:
            self._engine = SelectiveAveraging(
                model,
                optimizer,
                self._rules,
                meet=TimedBoard(board(), self.timing, reading=_READ, applying=_CONVERT, publishing=_PUBLISH),
                takeover=self._takeover,
                schedule=self._schedule,
                build=self._build,
            )
        elif model is not self._engine.model or optimizer is not self._engine.optimizer:
            self._engine.use(model, optimizer)
        metric = None if local_metric is None else float(local_metric)
        return self._engine, self._engine.step(metric, number=iteration, publish=publish)

    def _build(self) -> tuple[torch.nn.Module, Optimizer | None]:
        with self.timing.measure(_BUILD):
            return self._model_builder()


class AsyncSelectiveAveragingPolicy(SelectivePolicy):
    """Replaces the worst ranks of a group of torch.distributed by an average of the others; no rank waits for another.

    The first call is one of all ranks of the group, of one host or of several. After it ranks may stop or die.

    Args:
        model_builder: Function that makes a model and its optimizer, called once per replacement.
        average_every: Iterations from one check to the next.
        replacement_ratio: Share of the ranks that is replaced, at least one rank, never all; 0 for none.
        averaging_strategy: "mean", "weighted_mean", "best_only" or "reset_weights".
        momentum: Share of the own weights that stays, from 0 to below 1.
        poll_interval_s: Seconds from one look for messages of other hosts to the next; ranks of one host need no
            messages.
        threshold: Ranks are replaced only while the lowest metric is below it; None for always.
        cooldown: Iterations after a replacement in which a rank is not replaced again.
        timing: A dict that gets `timing`; None makes one.
        in_place: Whether the weights change in the model that was passed, and that one is returned.
        seed: Seed of all random choices.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        model_builder: ModelBuilder,
        average_every: int,
        replacement_ratio: float = 0.2,
        averaging_strategy: Strategy = "mean",
        momentum: float = 0.0,
        poll_interval_s: float = 0.01,
        threshold: float | None = None,
        cooldown: int = 200,
        timing: dict[str, Any] | None = None,
        *,
        in_place: bool = False,
        seed: int = 0,
    ) -> None:
        if not poll_interval_s > 0:
            raise ConfigError(f"poll_interval_s is {poll_interval_s}; it is above 0")
        rules = Rules(
            every=max(1, int(average_every)),
            strategy=averaging_strategy,
            replace_worst=replacement_ratio,
            threshold=threshold,
            cooldown=cooldown,
        )
        super().__init__(model_builder, average_every, rules, momentum=momentum, in_place=in_place, seed=seed)
        self.poll_interval_s = poll_interval_s
        self.threshold = threshold
        self.cooldown = cooldown
        if timing is not None:
            timing.update(self.timing)

    def __call__(
        self,
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None = None,
        group: Any = None,
    ) -> Result:
        """Publish, check, and take over weights that have been fetched. Call it after `optimizer.step()`.

        Args:
            iteration: Number of the iteration, from 0.
            model: Model of this rank.
            optimizer: Optimizer of this rank.
            local_metric: Metric of this rank, higher is better; None if there is no news.
            group: Group of the ranks; None for all.

        Returns:
            Model and optimizer to go on with, and `averaged_this_iteration`; no values without torch.distributed.

        Raises:
            ConfigError: it was shut down.
            PeerLost: at the first call, the group failed.
            SegmentError: no shared memory.
        """
        if not _is_distributed():
            return model, optimizer, {}
        if dist.get_rank(group) < 0:
            return model, optimizer, {"averaged_this_iteration": False}

        def board() -> Board:
            return meet_in_group(group if group is not None else dist.group.WORLD, self.poll_interval_s)

        engine, event = self._run(board, iteration, model, optimizer, local_metric, publish=True)
        return engine.model, engine.optimizer, {"averaged_this_iteration": event is not None}


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
