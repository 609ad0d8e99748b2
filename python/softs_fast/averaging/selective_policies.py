"""The selective policies of torchgfn's page `spawn_policy`: one adapter over one engine, `SelectiveAveraging`."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from softs_fast.averaging.board import Board, Event, Fetch
from softs_fast.averaging.checks import Pending
from softs_fast.averaging.decide import Mode, Rules, Strategy, lifetime_of
from softs_fast.averaging.meeting import POLL_INTERVAL_S, meet_by_mpi, meet_in_group
from softs_fast.averaging.mpi import load_mpi
from softs_fast.averaging.schedule import Schedule
from softs_fast.averaging.selective import SelectiveAveraging
from softs_fast.averaging.shared_model import Build
from softs_fast.averaging.takeover import Takeover
from softs_fast.errors import ConfigError

Result = tuple[torch.nn.Module, Optimizer | None, dict[str, Any]]

# What is measured, by the names of the page.
_READ = "sa get_params_from_donors"
_CONVERT = "sa param_list_to_dict_convert"
_BUILD = "sa new_agent_model_rebuild"
_PUBLISH = "sa copy_params_to_buf"
# Of the numbers of one kind, so many are kept.
_MOST_KEPT = 10_000


class SpawnPolicy(ABC):
    """A policy that may change weights in each iteration.

    Args:
        average_every: Iterations from one time to the next, at least 1; iteration 0 counts.
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


class _SelectivePolicy(SpawnPolicy):
    """What all selective policies share: one engine, made at the first call."""

    def __init__(
        self,
        build: Build,
        average_every: int,
        rules: Rules,
        momentum: float,
        poll_interval_s: float,
        *,
        in_place: bool,
        seed: int,
    ) -> None:
        super().__init__(average_every)
        if not poll_interval_s > 0:
            raise ConfigError(f"poll_interval_s is {poll_interval_s}; it is above 0")
        self.replacement_ratio = rules.replace_worst
        self.averaging_strategy = rules.strategy
        self.momentum = momentum
        self.poll_interval_s = poll_interval_s
        #: Seconds of the last calls, by what was done.
        self.timing: dict[str, deque[float]] = {
            name: deque(maxlen=_MOST_KEPT) for name in (_READ, _CONVERT, _BUILD, _PUBLISH)
        }
        self._model_builder = build
        self._rules = rules
        self._takeover = Takeover(momentum=momentum, optimizer_state="fresh", in_place=in_place)
        self._schedule = Schedule(publish_every=self.average_every, seed=seed)
        self._engine: _TimedAveraging | None = None

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
        publish: bool = True,
    ) -> tuple[SelectiveAveraging, Event | None]:
        """Pass an iteration to the engine."""
        if self._engine is None:
            self._engine = _TimedAveraging(
                model,
                optimizer,
                self._rules,
                meet=board(),
                takeover=self._takeover,
                schedule=self._schedule,
                build=self._build,
            )
            self._engine.timing = self.timing
        elif model is not self._engine.model or optimizer is not self._engine.optimizer:
            self._engine.use(model, optimizer)
        metric = None if local_metric is None else float(local_metric)
        return self._engine, self._engine.step(metric, number=iteration, publish=publish)

    def _build(self) -> tuple[torch.nn.Module, Optimizer | None]:
        with _measured(self.timing[_BUILD]):
            return self._model_builder()


class AsyncSelectiveAveragingPolicy(_SelectivePolicy):
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
        ConfigError: An argument is out of range.
    """

    def __init__(
        self,
        model_builder: Build,
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
        rules = Rules(
            every=max(1, int(average_every)),
            strategy=averaging_strategy,
            replace_worst=replacement_ratio,
            threshold=threshold,
            cooldown=cooldown,
        )
        super().__init__(
            model_builder, average_every, rules, momentum, poll_interval_s, in_place=in_place, seed=seed
        )
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
            ConfigError: It was shut down.
            PeerLost: At the first call, the group failed.
            SegmentError: No shared memory.
        """
        if not is_distributed():
            return model, optimizer, {}
        if dist.get_rank(group) < 0:
            return model, optimizer, {"averaged_this_iteration": False}
        engine, event = self._run(
            lambda: meet_in_group(group if group is not None else dist.group.WORLD, self.poll_interval_s),
            iteration,
            model,
            optimizer,
            local_metric,
        )
        return engine.model, engine.optimizer, {"averaged_this_iteration": event is not None}


class AsyncSelectiveAveragingPolicympi4pyGeneral(_SelectivePolicy):
    """Replaces ranks of a communicator of mpi4py by the average of half of the others, drawn at random.

    MPI carries where the windows are, at the first call, and weights between hosts alone.

    Args:
        model_builder: Function that makes a model and its optimizer, called once per replacement.
        model: Not used; each call has the model of this rank.
        average_every: Iterations from one check to the next; in the mode `age` each iteration is checked.
        threshold_metric: Metric below which the mode `threshold` replaces a rank.
        replacement_ratio: Share of the ranks that the mode `worst_ratio` replaces.
        averaging_strategy: "mean", "weighted_mean", "best_only" or "reset_weights".
        momentum: Share of the own weights that stays, from 0 to below 1.
        poll_interval_s: Seconds from one look for messages of other hosts to the next; ranks of one host need no
            messages.
        age_range: Shortest and longest lifetime, iterations.
        replacement_mode: "age", "threshold" or "worst_ratio".
        group: Communicator; None for `MPI.COMM_WORLD`.
        in_place: Whether the weights change in the model that was passed, and that one is returned.
        seed: Seed of all random choices.

    Attributes:
        stats: The last 10,000 numbers of each statistic, by its name; each replacement adds one to each.

    Raises:
        ConfigError: An argument is out of range.
        ImportError: There is no MPI; the text says what to install.
    """

    def __init__(
        self,
        model_builder: Build,
        model: torch.nn.Module,
        average_every: int,
        threshold_metric: float = 0.0,
        replacement_ratio: float = 0.2,
        averaging_strategy: Strategy = "mean",
        momentum: float = 0.0,
        poll_interval_s: float = POLL_INTERVAL_S,
        age_range: tuple[int, int] = (50, 150),
        replacement_mode: Mode = "age",
        group: Any = None,
        *,
        in_place: bool = False,
        seed: int = 0,
    ) -> None:
        rules = Rules(
            # Lifetimes are a cadence of their own.
            every=1 if replacement_mode == "age" else max(1, int(average_every)),
            mode=replacement_mode,
            strategy=averaging_strategy,
            replace_worst=replacement_ratio,
            threshold=threshold_metric if replacement_mode == "threshold" else None,
            age_range=(age_range[0], age_range[1]),
            donor_share=0.5,
        )
        super().__init__(
            model_builder, average_every, rules, momentum, poll_interval_s, in_place=in_place, seed=seed
        )
        self.train_comm_group = load_mpi().COMM_WORLD if group is None else group
        self.myrank: int = self.train_comm_group.Get_rank()
        self.comm_size: int = self.train_comm_group.Get_size()
        self.threshold_metric = threshold_metric
        self.replacement_mode = replacement_mode
        self.age_range = rules.age_range
        self.total_iterations = 0
        self.averaging_ranks = 0
        self.debug_mode = False
        self.stats: dict[str, deque[float]] = {}

    def __call__(  # type: ignore[override]  # as on the page, where `group` comes after `expose_params`
        self,
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None = None,
        expose_params: bool = True,
        group: Any = None,
    ) -> Result:
        """Publish, check, and take over weights that have been fetched. Call it after `optimizer.step()`.

        Args:
            iteration: Number of the iteration, from 0.
            model: Model of this rank.
            optimizer: Optimizer of this rank.
            local_metric: Metric of this rank, higher is better; None if there is no news.
            expose_params: Whether others may see these weights.
            group: Not used; the group of the constructor is.

        Returns:
            Model and optimizer to go on with, and flat values for a log.

        Raises:
            ConfigError: At the first call, ranks are on several hosts, and MPI was not initialized for threads; later,
                it was shut down.
            SegmentError: No shared memory.
        """
        self.total_iterations += 1
        engine, event = self._run(
            lambda: meet_by_mpi(self.train_comm_group, self.poll_interval_s),
            iteration,
            model,
            optimizer,
            local_metric,
            publish=expose_params,
        )
        if event is not None:
            self.averaging_ranks = len(event.donations)
            self.capture_comm("donors", self.averaging_ranks)
            n_received = sum(weight.numel() for weight in engine.model.parameters()) * self.averaging_ranks
            self.capture_comm("num_param_tensors_received", n_received)
        info: dict[str, Any] = {
            "averaged_this_iteration": event is not None,
            "is_replaced": event is not None,
            "replacement_mode": self.replacement_mode,
            "num_replacements_so_far": self.num_replacements,
            "local_metric": local_metric,
            "replacement_check_every": self.average_every,
        }
        if self.replacement_mode == "worst_ratio" and iteration % self.average_every == 0:
            known = [metric for metric in engine.metrics if not math.isnan(metric)]
            if known:
                info |= {"global_min_metric": min(known), "global_max_metric": max(known)}
        return engine.model, engine.optimizer, info

    @property
    def age(self) -> int:
        """Iterations since the start or the last replacement."""
        return 0 if self._engine is None else int(self._engine.counters["trained"])

    @property
    def max_age(self) -> int:
        """Iterations until this rank is replaced, in the mode `age`."""
        return lifetime_of(self.myrank, self.num_replacements, self._rules, self._schedule.seed)

    @property
    def num_replacements(self) -> int:
        """Replacements of this rank so far."""
        return 0 if self._engine is None else int(self._engine.counters["replaced"])

    @property
    def agents_killed(self) -> int:
        """The same as `num_replacements`."""
        return self.num_replacements

    def is_agent_dying(
        self, local_metric: float | None, threshold_metric: float, check_agent: int = 0
    ) -> bool:
        """Return whether its age (`check_agent` 0) or its metric (1) lets a rank be replaced."""
        if check_agent == 0:
            return self.age > self.max_age
        return local_metric is not None and not local_metric >= threshold_metric

    def reset_age(self) -> None:
        """Have the lifetime begin now."""
        if self._engine is not None:
            self._engine.reset_age()

    def capture_comm(self, name: str, size: float) -> None:
        """Add a number to the statistics."""
        self.stats.setdefault(name, deque(maxlen=_MOST_KEPT)).append(size)

    def print_time(self) -> None:
        """Print the seconds of each kind, to stdout."""
        for name, seconds in self.timing.items():
            print(f"{name}: {sum(seconds):.6f} s")

    def print_stats(self) -> None:
        """Print the least, the largest and the mean number of each statistic, and the replacements, to stdout."""
        for name, numbers in self.stats.items():
            mean = sum(numbers) / len(numbers)
            print(f"{name}: min {min(numbers)}, max {max(numbers)}, avg {mean:.3f}, len {len(numbers)}")
        print(f"replaced {self.num_replacements} out of {self.total_iterations}")


class AsyncSelectiveAveragingPolicympi4pyFast(AsyncSelectiveAveragingPolicympi4pyGeneral):
    """The same as `AsyncSelectiveAveragingPolicympi4pyGeneral`, without the argument `poll_interval_s`."""

    def __init__(
        self,
        model_builder: Build,
        model: torch.nn.Module,
        average_every: int,
        threshold_metric: float = 0.0,
        replacement_ratio: float = 0.2,
        averaging_strategy: Strategy = "mean",
        momentum: float = 0.0,
        age_range: tuple[int, int] = (50, 150),
        replacement_mode: Mode = "age",
        group: Any = None,
        *,
        in_place: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model_builder,
            model,
            average_every,
            threshold_metric,
            replacement_ratio,
            averaging_strategy,
            momentum,
            POLL_INTERVAL_S,
            age_range,
            replacement_mode,
            group,
            in_place=in_place,
            seed=seed,
        )

    def is_agent_dying(
        self, local_metric: float | None, threshold_metric: float, check_policy: int = 0
    ) -> bool:
        """Return whether its age (`check_policy` 0) or its metric (1) lets a rank be replaced."""
        return super().is_agent_dying(local_metric, threshold_metric, check_policy)


class _TimedAveraging(SelectiveAveraging):
    """The engine, which measures its copies."""

    timing: dict[str, deque[float]]
    _began_s = 0.0

    def _publish(self) -> None:
        n_before, start_s = self._counters["published"], time.perf_counter()
        super()._publish()
        if self._counters["published"] > n_before:
            self.timing[_PUBLISH].append(time.perf_counter() - start_s)

    def _fetch(self, pending: Pending) -> None:
        self._began_s = time.perf_counter()
        super()._fetch(pending)

    def _conclude(self, pending: Pending, fetch: Fetch | None) -> Event:
        if fetch is not None:
            self.timing[_READ].append(time.perf_counter() - self._began_s)
        with _measured(self.timing[_CONVERT]):
            return super()._conclude(pending, fetch)


@contextmanager
def _measured(seconds: deque[float]) -> Iterator[None]:
    """Add the seconds of a block."""
    start_s = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - start_s)


def is_distributed() -> bool:
    """Return whether torch.distributed has a default group."""
    return dist.is_available() and dist.is_initialized()
