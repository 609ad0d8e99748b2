"""The DataLoader over a recording: the batches of an ordered loader, without a market."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ..configs import BatchConfig
from ..errors import ConfigError
from ..process import Closing
from ..record import Recording
from .arguments import whole_number
from .endless import checked_positions
from .ranks import checked_ranks, ranks_of_process
from .readers.batch_memory import BatchMemory

__all__ = ["ReplayLoader"]

logger = logging.getLogger(__name__)


class ReplayLoader(DataLoader[dict[str, torch.Tensor]], Closing):
    """DataLoader over a recording. Its batches are those of a `SoftDataLoader` with `ordered=True` at the same numbers, to the bit.

    An iterator goes on where the last one stopped, which it ends, and ends with the recording; the next one begins anew. The
    last batch may have fewer samples. `state_dict` is that of the live loader: a live one loads it and goes on with the first
    number that was not handed out here, and this one goes on where a live one stopped.

        with sf.ReplayLoader("epoch", batch_size=32) as loader:
            for batch in loader:
                train(batch["x"], batch["y"])
        live.load_state_dict(loader.state_dict())

    Args:
        folder: Folder of the recording, or its URL in a store of fsspec, as for `Recording`.
        batch_size: Samples of a batch.
        batch_config: Config that the recorded samples must have; None: any.
        last: Number of samples at the end of the recording, those of all ranks, to replay; None: all of it.
        shuffle_seed: Seed by which the samples are shuffled, in another order in each epoch; None: they come by their numbers.
        rank, world_size: Rank and number of processes that share the samples, as for `SoftIterableDataset`: sample number s
            goes to rank s % world_size. All ranks get the same number of samples: of the last ones, fewer than world_size are
            left out.
        verify, cache_bytes: The same as for `Recording`.
        **dataloader_kwargs: Arguments of DataLoader, such as `num_workers` and `pin_memory`; the batches and their order are not
            among them.

    Attributes:
        recording: The recording.

    Raises:
        ConfigError: A number is out of range; or as for `Recording`.
        DamagedError: Samples are missing in the midst of the recording; or as for `Recording`.
        OSError: A file cannot be read.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        batch_size: int = 1,
        batch_config: BatchConfig | None = None,
        last: int | None = None,
        shuffle_seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        verify: bool = False,
        cache_bytes: int = 4 << 30,
        **dataloader_kwargs: Any,
    ) -> None:
        whole_number("batch_size", batch_size, 1)
        if last is not None:
            whole_number("last", last, 1)
        if shuffle_seed is not None:
            whole_number("shuffle_seed", shuffle_seed, 0)
        if refused := _OF_BATCHES & dataloader_kwargs.keys():
            raise ConfigError(
                f"a ReplayLoader chooses batches and their order by itself; leave out {', '.join(sorted(refused))}, or make a "
                "DataLoader of a RecordedDataset"
            )
        ranks = checked_ranks(rank, world_size) or ranks_of_process()
        self.recording = recording = Recording(
            folder, batch_config=batch_config, verify=verify, cache_bytes=cache_bytes
        )
        self._rank, self._world_size = ranks
        self._seed, self._epoch = shuffle_seed, 0
        span, n = recording.span, ranks.world_size
        if len(span) < max(n, last or 0):
            raise ConfigError(
                f"recording {recording.folder} has {len(span)} samples, expected at least {max(n, last or 0)}: one for each rank, and "
                "as many as last= asks for"
            )
        # Rounds: one number for each rank.
        self._begin = -(-span.start // n)
        self._end = max(self._begin, span.stop // n)
        if last is not None:
            self._begin = max(self._begin, (span.stop - last) // n)
        elif span.start % n:
            logger.warning(
                "the replay of %s begins with number %d, the first of a round of %d ranks",
                folder,
                self._begin * n,
                n,
            )
        # Samples of the stream, before the next one of this rank.
        self._position = self._begin
        # Of the newest iterator: older ones have ended.
        self._turn = 0
        super().__init__(
            _Batches(recording, None if shuffle_seed is not None else n, batch_size),
            batch_size,
            sampler=_Numbers(self),
            collate_fn=_unchanged,
            **dataloader_kwargs,
        )

    def __iter__(self) -> Any:
        """Return an iterator over batches, each `{name: dtype [n, *shape]}`.

        Raises (the iterator):
            DamagedError, OSError: A shard is missing, cut short or altered, or cannot be read.
        """
        if self._position == self._end:
            self._position = self._begin
        self._turn += 1
        if self.num_workers or self.pin_memory:
            return self._counted(super().__iter__(), self._turn)
        # Small samples take less time than torch's iterator.
        read = self.dataset.__getitems__  # type: ignore[attr-defined]
        return self._counted((read(numbers) for numbers in self.batch_sampler or ()), self._turn)

    def _counted(self, batches: Iterator[Any], turn: int) -> Iterator[Any]:
        # An older iterator takes nothing: persistent workers have one iterator for all.
        while turn == self._turn and (batch := next(batches, None)) is not None:
            self._position = min(self._position + (self.batch_size or 1), self._end)
            if self._position == self._end:
                self._epoch += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return how far the replay has come, for `load_state_dict` of this class.

        Returns:
            `{"positions": {product: samples of this rank before the next one}}`, and `"world_size"` where ranks share the samples:
            the state of a `SoftDataLoader` with `ordered=True`; at the end of a shuffled epoch also `"epoch"`. In the midst of
            one, or if the recording is not of an ordered stream, there is no such position: `{"replayed": {product: samples},
            "epoch": epochs}` and what decides on the order of the samples.
        """
        position = {self.recording.product: self._position}
        if not self.recording.ordered or (self._seed is not None and self._position != self._end):
            return {"replayed": position, "epoch": self._epoch, **self._order}
        size = {"world_size": self._world_size} if self._world_size > 1 else {}
        return {"positions": position, **size, **({} if self._seed is None else {"epoch": self._epoch})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterator begin where another one stopped; those that there are end.

        Args:
            state: State that `state_dict` of this class, or of a live loader, returned.

        Raises:
            ConfigError: `state` is something else, it is of another number of ranks, the samples came in another order, or the
                recording does not have the next sample.
        """
        is_live = isinstance(state, Mapping) and "positions" in state
        if is_live and (have := state.get("world_size", 1)) != self._world_size:
            raise ConfigError(
                f"the state counts the samples of each of {have} ranks, but {self._world_size} share the recording now"
            )
        if not is_live and isinstance(state, Mapping):
            state = {"positions": state.get("replayed"), **state}
        position = checked_positions(state).get(self.recording.product, 0)
        if not is_live:
            for name, here in self._order.items():
                if (there := state.get(name)) != here:
                    raise ConfigError(
                        f"the state is of a replay with {name} {there!r}, and this one has {name} {here!r}, so its samples come in "
                        "another order: replay the same samples as then, in the same way"
                    )
        elif self._seed is not None and self._begin < position < self._end:
            raise ConfigError(
                f"the state goes on by the numbers, with sample {position} of each rank, and this replay shuffles samples {self._begin} "
                f"to {self._end - 1}: leave out shuffle_seed, or begin an epoch anew"
            )
        if not self._begin <= position <= self._end:
            raise ConfigError(
                f"the state goes on with sample {position} of each rank, and recording {self.recording.folder} has samples "
                f"{self._begin} to {self._end - 1} of product {self.recording.product!r}"
            )
        self._position, self._epoch = position, whole_number("epoch", state.get("epoch", 0), 0)
        self._turn += 1

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the samples, where they are shuffled; each complete iteration goes to the next one by itself.

        Raises:
            ConfigError: `epoch` is no whole number, or below 0.
        """
        self._epoch = whole_number("epoch", epoch, 0)

    def _numbers(self) -> Sequence[int]:
        """Return the numbers of the samples of this rank in the order of this epoch."""
        n = self._world_size
        first, stop = self._begin * n, self._end * n
        if self._seed is None:
            return range(first + self._rank, stop, n)
        order = np.random.default_rng([self._seed, self._epoch]).permutation(stop - first)
        numbers: list[int] = (first + order[self._rank :: n]).tolist()
        return numbers

    @property
    def _order(self) -> dict[str, Any]:
        """What decides on the order of the samples; one by their numbers stays the same if the recording becomes longer."""
        order = {"world_size": self._world_size, "shuffle_seed": self._seed}
        return order if self._seed is None else {**order, "begin": self._begin, "end": self._end}

    @property
    def _n_samples(self) -> int:
        """Samples of this rank in an epoch."""
        return self._end - self._begin

    @property
    def _n_done(self) -> int:
        """Samples of this rank that were handed out in this epoch."""
        return self._position - self._begin

    def close(self) -> None:
        """Close the files; a later iterator opens them again. The end of a ``with`` block."""
        self.recording.close()


class _Numbers:
    """What torch takes for a sampler: the numbers that are left in this epoch."""

    def __init__(self, loader: ReplayLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[int]:
        return iter(self._loader._numbers()[self._loader._n_done :])

    def __len__(self) -> int:
        """Return the length of the whole epoch."""
        return self._loader._n_samples


class _Batches(Dataset[dict[str, torch.Tensor]]):
    """Makes the batches of some numbers.

    Args:
        recording: The recording.
        step: Distance of the numbers of a batch; None if they are shuffled.
        batch_size: Samples of most batches.
    """

    def __init__(self, recording: Recording, step: int | None, batch_size: int) -> None:
        self._recording = recording
        self._step = step
        self._batch_size = batch_size
        # Memory that is used again costs no new pages. It is made with the first batch, as it cannot be sent to a process.
        self._memory: BatchMemory | None = None
        self._uses_memory = recording.config.ragged is None and not recording.config.has_codecs

    def __getitems__(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the batch of some numbers."""
        if self._step is not None:
            numbers = range(numbers[0], numbers[-1] + 1, self._step)
        recording = self._recording
        if not self._uses_memory or len(numbers) != self._batch_size or get_worker_info() is not None:
            return recording.batch(numbers)
        if self._memory is None:
            self._memory = BatchMemory(recording.config, self._batch_size, False)
        self._memory.lend()
        recording.fill(numbers, dict(zip(recording.config.tensor_names, self._memory.blocks(), strict=True)))
        return self._memory.take()


#: Arguments of DataLoader that decide what is in a batch.
_OF_BATCHES = {"batch_sampler", "collate_fn", "drop_last", "in_order", "sampler", "shuffle"}


def _unchanged(batch: Any) -> Any:
    return batch
