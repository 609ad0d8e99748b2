"""Which samples a worker takes, what it shows, pauses, devices."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections import namedtuple

import pytest

pytest.importorskip("urllib3", reason="needs the extra paramworker")
import torch
from fake_server import OPTIONS, Answer, FakeServer, linear
from torch import nn

from softs_fast.errors import ConfigError
from softs_fast.paramserver.job import Job
from softs_fast.paramserver.wire.messages import (
    DataRange,
    DataRequest,
    Failure,
    JoinAnswer,
    RunConfig,
    decode,
    encode,
)
from softs_fast.paramserver.worker.batches import LeasedIndices, RankIndices, next_batches, order
from softs_fast.paramserver.worker.optimizer import RemoteOptimizer
from softs_fast.paramserver.worker.progress import Progress, bar, size
from softs_fast.paramserver.worker.training import chosen_device, pause_on_signal, train

X = torch.linspace(-1, 1, 30).reshape(10, 3)
JOB = Job(
    linear,
    lambda module, batch: nn.functional.mse_loss(module(batch[0]), batch[1]),
    lambda: torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True)),
)


def joined(rank: int, world_size: int, config: RunConfig) -> JoinAnswer:
    return JoinAnswer("w", rank, world_size, config, "00" * 16, 1, 0)


def test_ranks_share_each_epoch_without_overlap() -> None:
    config = RunConfig(rounds=9, batch_size=4, seed=7)
    taken: list[list[int]] = []
    for rank in range(3):
        indices = RankIndices(joined(rank, 3, config), 20)
        share = [indices.next() for _ in range(4)]
        assert [len(batches) for batches in share] == [1] * 4
        taken.append([i for batches in share for batch in batches for i in batch])
    # Shares of 7, 7, 6 in batches of 4; two epochs.
    first = [i for share, n in zip(taken, (7, 7, 6), strict=True) for i in share[:n]]
    assert sorted(first) == list(range(20))
    assert taken[0][:7] == order(7, 0, 20)[::3]
    assert taken[0][7:] == order(7, 1, 20)[::3]


def test_local_steps_take_as_many_batches() -> None:
    config = RunConfig(rounds=9, batch_size=2, local_steps=3)
    assert [len(batch) for batch in RankIndices(joined(0, 1, config), 10).next()] == [2, 2, 2]


def test_fewer_samples_than_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 samples for 3 workers"):
        RankIndices(joined(0, 3, RunConfig(rounds=1, batch_size=1)), 2)


def test_leases_are_asked_for_until_there_are_some() -> None:
    config = RunConfig(rounds=9, batch_size=4, data="leases", dataset_size=10, seed=5)
    answers_given = [
        Answer(204),
        Answer(200, encode(DataRange(2, 5, ((0, 4), (8, 10))))),
        Answer(200, encode(DataRange(2, 5, ((4, 11),)))),
    ]
    with (
        FakeServer(linear(), config) as server,
        RemoteOptimizer(linear(), server.invite, OPTIONS) as optimizer,
    ):
        indices = LeasedIndices(optimizer.session, 10)
        server.before = lambda method, path: answers_given.pop(0) if path == "/v1/data" else None
        expected = order(5, 2, 10)
        assert indices.next() == [expected[0:4], expected[8:10]]
        assert indices.lease == 1
        with pytest.raises(ConfigError, match="hands out sample 11 of 10"):
            indices.next()


def test_a_lease_that_is_spent_is_followed_by_the_next_number() -> None:
    config = RunConfig(rounds=9, batch_size=4, data="leases", dataset_size=10, seed=5)
    asked: list[int] = []
    spent = Answer(409, encode(Failure("spent", "it was taken back", "ask with the next number")))
    wanted = Answer(200, encode(DataRange(0, 5, ((1, 4),))))
    answers_given = [Answer(204), spent, wanted]

    def route(method: str, path: str, body: bytes) -> Answer | None:
        if path != "/v1/data":
            return None
        asked.append(decode(DataRequest, body).number)
        return answers_given.pop(0)

    with (
        FakeServer(linear(), config) as server,
        RemoteOptimizer(linear(), server.invite, OPTIONS) as optimizer,
    ):
        server.before_body = route
        indices = LeasedIndices(optimizer.session, 10)
        assert indices.next() == [order(5, 0, 10)[1:4]]
        assert (asked, indices.lease) == ([1, 1, 2], 2)


def test_leased_samples_are_not_computed_twice() -> None:
    """A stale push returns its ranges, and another worker may have them by now: the worker asks for others."""
    config = RunConfig(
        rounds=3, batch_size=4, push_codec="f32", compression=False, data="leases", dataset_size=10
    )
    n_data = 0

    def before(method: str, path: str) -> None:
        nonlocal n_data
        if path == "/v1/data":
            n_data += 1
            if n_data == 2:
                server.version += 1

    with FakeServer(linear(), config) as server:
        server.before = before  # type: ignore[assignment]
        out = io.StringIO()
        progress = Progress(out)
        train(JOB, server.invite, OPTIONS, "cpu", progress)
        progress.close()
        assert n_data == 3
        assert "2 pushes of 8 samples counted, 1 stale" in out.getvalue()
        assert [header.samples for header in server.frames] == [4, 4]
        # The push of lease 2 was stale; the last request for samples has no push, because the run is over.
        assert [header.lease for header in server.frames] == [1, 3]
        assert all(header.loss > 0 for header in server.frames)


def test_a_signal_pauses_and_the_next_one_resumes() -> None:
    config = RunConfig(rounds=2, batch_size=3, push_codec="f32", compression=False)
    with FakeServer(linear(), config) as server, pause_on_signal() as is_paused:
        server.before = lambda method, path: (
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            if path == "/v1/pause"
            else None
        )
        os.kill(os.getpid(), signal.SIGUSR1)
        train(JOB, server.invite, OPTIONS, "cpu", Progress(io.StringIO()), is_paused=is_paused)
        assert server.requests["POST /v1/pause"] == server.requests["POST /v1/resume"] == 1
        assert server.is_over


def test_batches_keep_their_form() -> None:
    class Indices(RankIndices):
        def __init__(self) -> None:
            pass

        def next(self) -> list[list[int]]:
            return [[0, 2], [1]]

    Pair = namedtuple("Pair", "x y")
    form = Job(
        linear,
        lambda module, batch: batch,
        lambda: [1, 2, 3],
        collate=lambda samples: Pair({"a": X}, samples),
    )
    (n, first), (_, last) = next_batches(form, form.data(), Indices(), "meta")
    assert (n, first.y, last.y) == (2, [1, 3], [2])
    assert isinstance(first, Pair)
    assert first.x["a"].is_meta


def test_devices() -> None:
    assert chosen_device("cpu") == "cpu"
    assert chosen_device("auto") in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigError, match="torch has no device 'warp' here"):
        chosen_device("warp")


def test_what_is_shown() -> None:
    assert bar(1, 4, 8) == "[##......]"
    assert bar(9, 4, 8) == "[########]"
    assert [size(n) for n in (12, 1234, 2_500_000, 3e9, 4e12)] == [
        "12 B",
        "1.2 kB",
        "2.5 MB",
        "3.0 GB",
        "4000.0 GB",
    ]
    assert Progress(io.StringIO()).summary() == "the worker has not joined"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    config = RunConfig(rounds=3, batch_size=5, push_codec="f32", compression=False)
    out = Terminal()
    with FakeServer(linear(), config) as server:
        progress = Progress(out)
        train(JOB, server.invite, OPTIONS, "cpu", progress)
        progress.close()
    text = out.getvalue()
    assert "\r[" in text
    assert "3 pushes of 15 samples counted, 0 stale" in text
    assert "0 failed attempts, 1 joins" in text
