"""The policies over mpi4py. MPI carries where the windows are, and weights between hosts alone."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch.optim import Optimizer

from softs_fast.averaging.decide import Mode, Rules, Strategy, lifetime_of
from softs_fast.averaging.meeting import POLL_INTERVAL_S, meet_by_mpi
from softs_fast.averaging.mpi import average_by_mpi, load_mpi
from softs_fast.averaging.torch_policies import ModelBuilder, Result, SelectivePolicy, SpawnPolicy
from softs_fast.errors import ConfigError

# Of the numbers of one statistic, so many are kept.
_MOST_KEPT = 10_000


class AverageAllPolicympi4py(SpawnPolicy):
    """Averages the parameters of all ranks of a communicator of mpi4py."""

    def __call__(
        self,
        iteration: int,
        model: torch.nn.Module,
        optimizer: Optimizer | None,
        local_metric: float | None = None,
        group: Any = None,
    ) -> Result:
        """Average in iterations that `average_every` divides; a call of all ranks of the communicator then.

        Raises:
            ImportError: there is no MPI; the text says what to install.
        """
        if iteration % self.average_every:
            return model, optimizer, {"averaged_this_iteration": False}
        average_by_mpi(load_mpi().COMM_WORLD if group is None else group, model)
        return model, optimizer, {"averaged_this_iteration": True}


class MpiPolicy(SelectivePolicy):
    """What both policies over mpi4py share; MPI carries where the windows are, at the first call, and weights between hosts alone.

    Attributes:
        stats: Numbers of each statistic by its name, one per replacement.
    """

    def __init__(
        self,
        model_builder: ModelBuilder,
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
        super().__init__(model_builder, average_every, rules, momentum=momentum, in_place=in_place, seed=seed)
        self.poll_interval_s = POLL_INTERVAL_S
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
        self._model = model
        self._seed = seed

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
            ConfigError: at the first call, ranks are on several hosts, and MPI was not initialized for threads; later,
                it was shut down.
            SegmentError: no shared memory.
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
        self._model = engine.model
        if event is not None:
            self.averaging_ranks = len(event.donations)
            self.capture_comm("donors", len(event.donations))
            n_received = sum(weight.numel() for weight in engine.model.parameters()) * len(event.donations)
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
        return lifetime_of(self.myrank, self.num_replacements, self._rules, self._seed)

    @property
    def num_replacements(self) -> int:
        """Replacements of this rank so far."""
        return 0 if self._engine is None else int(self._engine.counters["replaced"])

    @property
    def agents_killed(self) -> int:
        """The same as `num_replacements`."""
        return self.num_replacements

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
        """Print the least, the largest and the mean number of each statistic, and how many there are, to stdout."""
        for name, numbers in self.stats.items():
            mean = sum(numbers) / len(numbers)
            print(f"{name}: min {min(numbers)}, max {max(numbers)}, avg {mean:.3f}, len {len(numbers)}")

    def _is_dying(self, local_metric: float | None, threshold_metric: float, check: int) -> bool:
        if check == 0:
            return self.age > self.max_age
        return local_metric is not None and not local_metric >= threshold_metric

    def _print_parameters(self) -> None:
        """Print how many elements of each parameter were received."""
        donors = self.stats.get("donors", ())
        for name, weight in self._model.named_parameters():
            print(f"{name}: {weight.numel()} x {sum(donors):g}")


class AsyncSelectiveAveragingPolicympi4pyFast(MpiPolicy):
    """Replaces ranks of a communicator of mpi4py by the average of half of the others, drawn at random.

    Args:
        model_builder: Function that makes a model and its optimizer, called once per replacement.
        model: Model of this rank.
        average_every: Iterations from one check to the next; in the mode `age` each iteration is checked.
        threshold_metric: Metric below which the mode `threshold` replaces a rank.
        replacement_ratio: Share of the ranks that the mode `worst_ratio` replaces.
        averaging_strategy: "mean", "weighted_mean", "best_only" or "reset_weights".
        momentum: Share of the own weights that stays, from 0 to below 1.
        age_range: Shortest and longest lifetime, iterations.
        replacement_mode: "age", "threshold" or "worst_ratio".
        group: Communicator; None for `MPI.COMM_WORLD`.
        in_place: Whether the weights change in the model that was passed, and that one is returned.
        seed: Seed of all random choices.

    Raises:
        ConfigError: an argument is out of range.
        ImportError: there is no MPI; the text says what to install.
    """

    def is_agent_dying(
        self, local_metric: float | None, threshold_metric: float, check_policy: int = 0
    ) -> bool:
        """Return whether its age (`check_policy` 0) or its metric (1) lets a rank be replaced."""
        return self._is_dying(local_metric, threshold_metric, check_policy)

    def print_stats(self) -> None:
        """Print the statistics, the number of replacements, and the elements that were received, to stdout."""
        super().print_stats()
        print(f"replaced {self.num_replacements} out of {self.total_iterations}")
        self._print_parameters()


class AsyncSelectiveAveragingPolicympi4pyGeneral(MpiPolicy):
    """As `AsyncSelectiveAveragingPolicympi4pyFast`, with the argument `poll_interval_s`.

    Args:
        model_builder: Function that makes a model and its optimizer, called once per replacement.
        model: Model of this rank.
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

    Raises:
        ConfigError: an argument is out of range.
        ImportError: there is no MPI; the text says what to install.
    """

    def __init__(
        self,
        model_builder: ModelBuilder,
        model: torch.nn.Module,
        average_every: int,
        threshold_metric: float = 0.0,
        replacement_ratio: float = 0.2,
        averaging_strategy: Strategy = "mean",
        momentum: float = 0.0,
        poll_interval_s: float = 0.01,
        age_range: tuple[int, int] = (50, 150),
        replacement_mode: Mode = "age",
        group: Any = None,
        *,
        in_place: bool = False,
        seed: int = 0,
    ) -> None:
        if not poll_interval_s > 0:
            raise ConfigError(f"poll_interval_s is {poll_interval_s}; it is above 0")
        super().__init__(
            model_builder,
            model,
            average_every,
            threshold_metric,
            replacement_ratio,
            averaging_strategy,
            momentum,
            age_range,
            replacement_mode,
            group,
            in_place=in_place,
            seed=seed,
        )
        self.poll_interval_s = poll_interval_s

    def is_agent_dying(
        self, local_metric: float | None, threshold_metric: float, check_agent: int = 0
    ) -> bool:
        """Return whether its age (`check_agent` 0) or its metric (1) lets a rank be replaced."""
        return self._is_dying(local_metric, threshold_metric, check_agent)

    def print_stats(self) -> None:
        """Print the statistics, and the elements that were received, to stdout."""
        super().print_stats()
        self._print_parameters()
