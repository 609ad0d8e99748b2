"""Which samples a worker takes next: its share of each epoch, or ranges that the server hands out."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any

from torch.utils.data import default_collate

from ...errors import ConfigError
from ...tensors import call_on_all
from ..job import Job, Samples
from ..wire import answers
from ..wire.answers import Code
from ..wire.messages import DataRange, DataRequest, JoinAnswer, encode
from .exchanges import Call, refusal
from .session import Session

__all__ = ["LeasedIndices", "RankIndices", "RunOver", "next_batches", "order", "shard"]

#: Between two questions for data, while all of an epoch is with other workers.
_EXHAUSTED_S = 0.5


_OF_DATA = (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.CONFLICT, HTTPStatus.GONE)


class RankIndices:
    """Every `world_size`-th sample from the rank on, in the order of the epoch; then the next epoch.

    The last batch of an epoch may be shorter. A world with more workers than the data have samples is refused.

    Args:
        joined: Answer to the join, with rank, world size, batch size and seed.
        n: samples of the data.

    Raises:
        ConfigError: there are fewer samples than workers.
    """

    #: The samples are of no lease; see `LeasedIndices`.
    lease = 0

    def __init__(self, joined: JoinAnswer, n: int) -> None:
        if n < joined.world_size:
            raise ConfigError(f"the data have {n} samples for {joined.world_size} workers; need one for each")
        self._batches = self._generate(joined, n)
        self._n = max(1, joined.config.local_steps)

    def next(self) -> list[list[int]]:
        """Return the indices of each batch of the next push."""
        return [next(self._batches) for _ in range(self._n)]

    @staticmethod
    def _generate(joined: JoinAnswer, n: int) -> Iterator[list[int]]:
        config, epoch = joined.config, 0
        while True:
            share = shard(order(config.seed, epoch, n), joined.rank, joined.world_size)
            for begin in range(0, len(share), config.batch_size):
                yield list(share[begin : begin + config.batch_size])
            epoch += 1


class RunOver(Exception):
    """The run has ended while a worker asked for samples: its last push was too late."""


class LeasedIndices:
    """Ranges that the server hands out; they are done when the push that they are for is counted.

    Args:
        session: Session of the worker.
        n: Samples of the data.
    """

    def __init__(self, session: Session, n: int) -> None:
        self._session = session
        self._n = n
        #: Number of the last lease, for the push with its samples.
        self.lease = 0
        self._epoch: tuple[int, int] | None = None
        self._order: list[int] = []

    def next(self) -> list[list[int]]:
        """Return the indices of each batch of the next push.

        Raises:
            ConfigError: the server's data have more samples than these; or it refuses the worker.
            PeerLost: the server is out of reach for longer than `rejoin_timeout_s`.
            WireError: the server does not understand the request.
        """
        config = self._session.joined.config
        wanted = min(config.batch_size * max(1, config.local_steps), self._n)
        indices: list[int] = []
        while not indices:
            answer = self._ask(wanted)
            if (answer.epoch, answer.seed) != self._epoch:
                self._epoch = (answer.epoch, answer.seed)
                self._order = order(answer.seed, answer.epoch, self._n)
            for begin, end in answer.ranges:
                if not begin <= end <= self._n:
                    raise ConfigError(
                        f"the server hands out sample {end} of {self._n}; it must be told the size of the data"
                    )
                indices += self._order[begin:end]
        size = config.batch_size
        return [indices[begin : begin + size] for begin in range(0, len(indices), size)]

    def _ask(self, n: int) -> DataRange:
        self.lease += 1
        while True:
            # If the answer is lost, the same number gets the same samples.
            call = Call("POST", answers.DATA, encode(DataRequest(n, self.lease)), expected=_OF_DATA)
            self._session.run(call)
            assert call.answer is not None
            match call.answer.status:
                case HTTPStatus.OK:
                    return call.answer.record(DataRange)
                case HTTPStatus.GONE:
                    raise RunOver
                case HTTPStatus.CONFLICT:
                    if call.answer.code() != Code.SPENT:
                        raise refusal(call.answer, "samples")
                    self.lease += 1
                    continue
            time.sleep(_EXHAUSTED_S)


def next_batches(
    job: Job, data: Samples, indices: RankIndices | LeasedIndices, device: str
) -> list[tuple[int, Any]]:
    """Return (samples, batch) of each step of the next push.

    Args:
        job: Job with `collate`.
        data: Data of the job.
        indices: Indices, which decide the samples.
        device: Device of the tensors.
    """
    collate = job.collate or default_collate
    return [(len(one), call_on_all(collate([data[i] for i in one]), "to", device)) for one in indices.next()]


def order(seed: int, epoch: int, n: int) -> list[int]:
    """Return the numbers 0 to n - 1 in the order of an epoch.

    Sorted by numbers of Python's generator: of it, only the sequence of `random()` is promised to stay the same.

    Args:
        seed: Seed of the run.
        epoch: Epoch, from 0.
        n: Samples.
    """
    generator = random.Random(f"{seed} {epoch}")
    keys = [generator.random() for _ in range(n)]
    return sorted(range(n), key=keys.__getitem__)


def shard(positions: Sequence[int], rank: int, world_size: int) -> Sequence[int]:
    """Return every `world_size`-th position from the rank on."""
    return positions[rank % world_size :: world_size]
