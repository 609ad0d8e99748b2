"""Means without extreme values: against sorted lists, in any order, and in a server with a broken worker."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch
from raw_client import job_of

from softs_fast.errors import ConfigError, WireError
from softs_fast.paramserver.rounds.events import Share, Version
from softs_fast.paramserver.rounds.options import RunOptions
from softs_fast.paramserver.server.trainer import Trainer
from softs_fast.paramserver.server.trimmed import trimmed_greatest, trimmed_mean_of
from softs_fast.paramserver.wire.frame import encode_frame
from softs_fast.paramserver.wire.header import Codec, Kind
from softs_fast.paramserver.wire.messages import Failure, RunConfig
from softs_fast.paramserver.wire.tensors import Contents


@pytest.mark.parametrize("n", [1, 200_000])
@pytest.mark.parametrize("m", [1, 2, 3, 4, 7])
def test_the_median_is_that_of_each_element(m: int, n: int) -> None:
    torch.manual_seed(m)
    vectors = [torch.randn(n) for _ in range(m)]
    found = trimmed_mean_of([(1.0, one) for one in vectors], (m - 1) // 2)
    for at in {0, n // 2, n - 1}:
        expected = statistics.median(float(one[at]) for one in vectors)
        assert found[at] == torch.tensor(expected, dtype=torch.float64).float()


def test_the_order_of_pushes_changes_no_bit() -> None:
    torch.manual_seed(1)
    parts = [(1.0, torch.randn(100) * 10.0**i) for i in range(4)]
    first = trimmed_mean_of(parts, 0)
    assert all(torch.equal(trimmed_mean_of(list(order), 0), first) for order in itertools.permutations(parts))


def test_integers_are_the_greatest_that_are_kept() -> None:
    vectors = [torch.tensor([value, 1 << 62]) for value in (5, 1 << 60, -7, 6, 4)]
    assert trimmed_greatest(vectors, 1).tolist() == [6, 1 << 62]
    assert trimmed_greatest(vectors[:1], 0).tolist() == [5, 1 << 62]


def test_a_step_leaves_out_a_broken_push_and_its_buffers() -> None:
    trainer = Trainer(job_of())
    before, n = trainer.contents(), trainer.manifest.n_parameters
    shares = [
        (
            Share(rank, f"w{rank}", Version(1, 0), samples, 0.0, 0.5, rank),
            Contents(
                torch.full((n,), value),
                torch.full((trainer.manifest.n_floats,), value),
                torch.full((trainer.manifest.n_integers,), int(value)),
            ),
        )
        for rank, (value, samples) in enumerate([(1.0, 1), (3.0, 9), (1e18, 1000)])
    ]
    is_finite, after = trainer.step(shares, 1.0, 0.0, before, 1)
    assert is_finite
    assert torch.allclose(after.parameters, before.parameters - 0.1 * 3.0)
    assert after.floats is not None
    assert after.integers is not None
    assert set(after.floats.tolist()) == {3.0}
    assert set(after.integers.tolist()) == {3}


def test_a_worker_that_is_broken_changes_little(serve, enter) -> None:
    server = serve(world=3, quorum=3, aggregate="median", scale_by_world=False)
    workers = [enter(server) for _ in range(3)]
    _, before = workers[0].contents(workers[0].pull())
    for worker, value in zip(workers, (1.0, 2.0, -1e20), strict=True):
        assert worker.push(worker.frame(value)).status == 200
    _, after = workers[0].contents(workers[0].pull("1.0", 20.0))
    assert torch.allclose(after.parameters, before.parameters - 0.1 * 1.0)


def test_pushes_that_leave_elements_out_are_refused(serve, enter) -> None:
    server = serve(world=3, quorum=3, aggregate="trimmed")
    client = enter(server)
    assert client.joined.config.aggregate == "trimmed"
    frame = encode_frame(
        Contents(torch.ones(client.manifest.n_parameters)), kind=Kind.GRADIENT, codec=Codec.TOP_K, job=client.invite.job,
        manifest=client.manifest, timeline=1, version=0, samples=1, k=2,
    )  # fmt: skip
    answer = client.push(frame)
    assert (answer.status, answer.code) == (422, "bad-push")
    assert "use bf16 or int8" in answer.record(Failure).message
    with pytest.raises((WireError, ConfigError), match="use bf16 or int8"):
        serve(world=3, quorum=3, aggregate="trimmed", config={"codec": "top_k"})
    assert RunOptions(world=3, rounds=1).aggregate == RunConfig(target=1, batch_size=1).aggregate
