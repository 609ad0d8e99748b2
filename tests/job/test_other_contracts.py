"""What a rank has in common with the others of its job, by which the coordinator refuses one that trains something else."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
import torch
from live_job import CONFIG, GLOBAL, MICRO

import softs_fast as sf
from softs_fast.coordination.node import WorkerNode
from softs_fast.coordination.wire.formats import FROM_WORKER
from softs_fast.job.contract import contract_of, text_of_config
from softs_fast.job.ledger import Ledger
from softs_fast.job.position import Position


def test_a_rank_tells_the_coordinator_what_it_trains(frontend: str) -> None:
    """In the first message, which tests of admission compare."""
    model = torch.nn.Linear(6, 3)
    data = sf.LiveData("1", CONFIG, global_batch_size=GLOBAL, micro_batch_size=MICRO, endpoint=frontend)
    state = sf.TrainingState(model, torch.optim.SGD(model.parameters(), 0.1))
    node = sf.Job("digits", data, state, coordinator="127.0.0.1:1", seed=3)._make_worker()
    assert isinstance(node, WorkerNode)
    hello = node._link.hello()
    assert {one.name: one.value for one in hello.contract} == {
        "product": "1",
        "global_batch_size": str(GLOBAL),
        "micro_batch_size": str(MICRO),
        "seed": "3",
        "config": text_of_config(CONFIG),
        "model": "weight float32 [3, 6]; bias float32 [3]",
        "optimizer": "SGD",
    }
    assert FROM_WORKER.decode(FROM_WORKER.encode(hello)) == hello


def test_what_is_compared() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(50)))
    state = sf.TrainingState(model, torch.optim.AdamW(model.parameters()))
    found = contract_of(Position(Ledger("1", 96, 8), 7, text_of_config(CONFIG)), state)
    assert list(found) == [
        *("product", "global_batch_size", "micro_batch_size", "seed", "config"),
        *("model", "optimizer"),
    ]
    assert found["config"] == (
        "TensorSpec(name='x', shape=(6,), dtype='float32'); TensorSpec(name='number', shape=(), dtype='int64')"
    )
    assert (found["seed"], found["optimizer"]) == ("7", "AdamW")
    # A long text is known by its digest.
    assert len(found["model"]) < 500
    last = torch.nn.Sequential(*model[:-1], torch.nn.Linear(2, 2, bias=False))
    other = contract_of(Position(Ledger("1", 96, 8), 7), sf.TrainingState(last, state.optimizer))
    assert other["model"][:400] == found["model"][:400]
    assert other["model"] != found["model"]
