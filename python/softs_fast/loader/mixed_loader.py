"""Several loaders as one, mixed by weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Self

from ..errors import ConfigError
from ..process import Closing
from .arguments import whole_number
from .endless_loader import EndlessDataLoader
from .replay_loader import ReplayLoader

__all__ = ["MixedLoader"]


class MixedLoader(Closing):
    """Batches of several loaders, live ones and replays, mixed by weights. It is endless.

    Each batch comes from one loader: the one that is furthest behind its weight. So the shares hold at any time, no loader is ever
    a whole batch ahead of its share, and the order is the same in each run. A replay that ends begins anew.

        with sf.MixedLoader([sf.ReplayLoader("epoch", batch_size=32), live], weights=[3, 1]) as loader:
            for batch in loader:
                train(batch["x"], batch["y"])

    `state_dict` has the states of all loaders; a run that loads it continues exactly if the live ones have `ordered=True`.

    Args:
        loaders: Loaders, live ones and replays; use no other iterator of them meanwhile.
        weights: Share of the batches of each loader, in any unit; None: equal shares.

    Raises:
        ConfigError: There is no loader, one is something else, or the weights are not as many positive numbers.
    """

    def __init__(
        self,
        loaders: Sequence[EndlessDataLoader | ReplayLoader],
        weights: Sequence[float] | None = None,
    ) -> None:
        self._loaders = list(loaders)
        weights = [1.0] * len(self._loaders) if weights is None else list(weights)
        if not self._loaders or not all(
            isinstance(one, EndlessDataLoader | ReplayLoader) for one in self._loaders
        ):
            raise ConfigError(
                f"loaders must be one or more of SoftDataLoader, DistillDataLoader and ReplayLoader, got {self._loaders}"
            )
        # Their sum has to be a number, too.
        is_number = all(isinstance(one, Real) and 0 < one < 1e300 for one in weights)
        if len(weights) != len(self._loaders) or not is_number:
            raise ConfigError(
                f"weights must be {len(self._loaders)} positive numbers, one for each loader, got {weights}"
            )
        self._weights = [float(one) for one in weights]
        self._counts = [0] * len(weights)
        self._iterators: list[Iterator[Any] | None] = [None] * len(weights)

    def __iter__(self) -> Self:
        """Return this loader, which is its own iterator and continues where it is."""
        return self

    def __next__(self) -> Any:
        """Return the next batch of the loader that is furthest behind its weight.

        An exception does not end the iteration: the next call asks the same loader again.

        Raises:
            ConfigError: The loader has no batches.
            SoftsError, OSError: as the loader.
        """
        i = self._turn()
        for _ in range(2):
            iterator = self._iterators[i]
            if iterator is None:
                iterator = self._iterators[i] = iter(self._loaders[i])
            try:
                batch = next(iterator)
            except StopIteration:
                # A new one begins anew; also one of a generator that an exception has ended.
                self._iterators[i] = None
                continue
            self._counts[i] += 1
            return batch
        raise ConfigError(f"loader {i} of {len(self._loaders)} has no batches; give one that has some")

    def _turn(self) -> int:
        """Return the loader that is furthest behind its weight; of several the first."""
        n, total = sum(self._counts) + 1, sum(self._weights)
        behind = [
            n * weight / total - count for weight, count in zip(self._weights, self._counts, strict=True)
        ]
        return behind.index(max(behind))

    def state_dict(self) -> dict[str, Any]:
        """Return how far all loaders have come, for `load_state_dict`.

        Returns:
            `{"weights": weights, "counts": batches of each loader, "loaders": their states}`.
        """
        states = [one.state_dict() for one in self._loaders]
        return {"weights": list(self._weights), "counts": list(self._counts), "loaders": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another run stopped.

        Raises:
            ConfigError: `state` is something else, of other weights, or a loader refuses its part; then load another state before
                the next batch.
        """
        parts = [state.get(name) if isinstance(state, Mapping) else None for name in ("counts", "loaders")]
        counts, states = parts
        if not all(isinstance(one, list) and len(one) == len(self._loaders) for one in parts):
            raise ConfigError(
                f"invalid state: expected what state_dict of a MixedLoader of {len(self._loaders)} loaders returned"
            )
        assert isinstance(counts, list)
        assert isinstance(states, list)
        if (there := state.get("weights")) != self._weights:
            raise ConfigError(
                f"the state is of a mix with weights {there!r}, and this one has {self._weights}; give the same weights"
            )
        counts = [whole_number("a count of batches", one, 0) for one in counts]
        for loader, one in zip(self._loaders, states, strict=True):
            loader.load_state_dict(one)
        self._counts, self._iterators = counts, [None] * len(counts)

    def close(self) -> None:
        """Close all loaders. The end of a ``with`` block."""
        for loader in self._loaders:
            loader.close()
