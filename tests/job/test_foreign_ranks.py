"""A rank that trains something else than its job is refused by what differs, before it trains."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
import torch
from coordinator_process import Cluster
from live_job import GLOBAL, MICRO, LiveJob, Student, has, live_data

import softs_fast as sf
from softs_fast.coordination.wire.formats import FROM_WORKER
from softs_fast.job.contract import contract_of
from softs_fast.job.ledger import Ledger
from softs_fast.job.position import Position

CONFIG = sf.BatchConfig(
    [sf.TensorSpec("x", (6,), "float32"), sf.TensorSpec("l", (99,), "float32", codec="topk:8")]
)

LEDGER = Ledger("1", 96, 8)


def contract(
    model: torch.nn.Module,
    *,
    ledger: Ledger = LEDGER,
    seed: int = 0,
    config: sf.BatchConfig = CONFIG,
) -> dict[str, str]:
    return contract_of(Position(ledger, seed), config, model)


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in {**one, **other} if one.get(name) != other.get(name))


def test_the_terms() -> None:
    terms = contract(torch.nn.Linear(6, 3))
    assert {name: value for name, value in terms.items() if not name.endswith(": all")} == {
        "product": "1",
        "global_batch_size": "96",
        "micro_batch_size": "8",
        "switches": "",
        "seed": "0",
        "sample l": "float32 [99] topk:8, place 1",
        "sample x": "float32 [6], place 0",
        "model bias": "float32 [3]",
        "model weight": "float32 [3, 6]",
    }


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, []),
        ({"ledger": Ledger("2", 96, 4)}, ["micro_batch_size", "product"]),
        ({"ledger": Ledger("1", 48, 8), "seed": 7}, ["global_batch_size", "seed"]),
        (
            {"config": sf.BatchConfig([CONFIG.specs[1], CONFIG.specs[0]])},
            ["sample l", "sample x", "sample: all"],
        ),
        ({"config": sf.BatchConfig(CONFIG.specs[:1])}, ["sample l", "sample: all"]),
        ({"model": torch.nn.Linear(6, 3, bias=False)}, ["model bias", "model: all"]),
        ({"model": torch.nn.Linear(6, 3).double()}, ["model bias", "model weight", "model: all"]),
    ],
)
def test_what_differs(changed: dict[str, Any], names: list[str]) -> None:
    assert (
        differing(
            contract(torch.nn.Linear(6, 3)), contract(changed.pop("model", torch.nn.Linear(6, 3)), **changed)
        )
        == names
    )


def test_a_large_model_has_a_bounded_contract() -> None:
    """A tensor beyond the first ones, or with a very long name, is seen by the digest of all."""
    layers = [torch.nn.Linear(2, 2) for _ in range(200)]
    terms = contract(torch.nn.Sequential(*layers))
    assert len(terms) < 60
    last = contract(torch.nn.Sequential(*layers[:-1], torch.nn.Linear(2, 3)))
    assert differing(terms, last)[-1:] == ["model: all"]
    names = [contract(torch.nn.ModuleDict({"long" * 99: torch.nn.Linear(2, n)})) for n in (2, 3)]
    assert differing(*names) == ["model: all"]


def foreign_job(frontend: str, coordinator: str) -> sf.Job:
    student = Student(0)
    state = sf.TrainingState(student.model, student.optimizer)
    return sf.Job("digits", live_data(frontend), state, coordinator=coordinator, seed=6)


def test_the_first_message_has_it(frontend: str) -> None:
    node: Any = foreign_job(frontend, "127.0.0.1:1")._make_worker()
    hello = node._link.hello()
    found = {one.name: one.value for one in hello.contract}
    assert (found["seed"], found["global_batch_size"], found["micro_batch_size"]) == (
        "6",
        str(GLOBAL),
        str(MICRO),
    )
    assert FROM_WORKER.decode(FROM_WORKER.encode(hello)) == hello


@pytest.mark.timeout(240)
def test_before_during_and_after_a_kill_of_the_coordinator(
    live_job: Callable[..., LiveJob], cluster: Cluster, frontend: str, short_path: Path
) -> None:
    """Each try is refused, by the seed; the job goes on."""
    options = (
        "--min-workers",
        "1",
        "--max-workers",
        "2",
        "--form-timeout",
        "0.5",
        "--state",
        str(short_path / "state"),
    )
    job = live_job(30, *options)
    address, rank = job.coordinator.address, job.start()
    refusals: list[str] = []

    def try_to_join() -> None:
        with pytest.raises(sf.PeerLost) as raised, foreign_job(frontend, address):
            pass
        refusals.append(str(raised.value))

    job.allow(10)
    rank.until(10)
    try_to_join()
    job.coordinator.signal(signal.SIGKILL)
    job.coordinator.process.wait()
    waiting = threading.Thread(target=try_to_join)
    waiting.start()
    # Meanwhile it trains on.
    job.allow(20)
    rank.until(20)
    job.coordinator = cluster.coordinator("--job", "digits", *options, listen=address)
    waiting.join()
    job.coordinator.status(has(1))
    try_to_join()
    job.allow(30)
    rank.ended()
    assert job.recount() == [1] * 30
    assert len(refusals) == 3
    for text in refusals:
        assert "trains something else: its 'seed' is '6', and that of the job is '5'" in text
