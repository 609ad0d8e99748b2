"""Trainings with gradients that go through rank 0 over gRPC: no step is lost there, either."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra grpc")
from coordinator_process import Cluster, Coordinator
from trainers import Trainer, undisturbed

from softs_fast.coordination.credentials import ClientCredentials, ServerCredentials
from softs_fast.coordination.job.messages import Table
from softs_fast.coordination.node.engines import grpc_engine
from softs_fast.coordination.star import StarOptions

N_STEPS = 60
Start = Callable[..., Trainer]


def plain_star(table: Table, rank: int, store: Any) -> Any:
    """Return a star of this machine."""
    return grpc_engine()(table, rank, store)


class EncryptedStar:
    """Stars with the certificates of a worker; a class, since processes are started with it."""

    def __init__(self, cert: str, key: str, ca: str) -> None:
        self.paths = Path(cert), Path(key), Path(ca)

    def __call__(self, table: Table, rank: int, store: Any) -> Any:
        """Return a star."""
        cert, key, ca = self.paths
        options = StarOptions(
            server=ServerCredentials(cert, key, ca), client=ClientCredentials(cert, key, ca)
        )
        return grpc_engine(options)(table, rank, store)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that train, and end with the test."""
    started = []

    def trainer(coordinator: Coordinator, number: int, **options: Any) -> Trainer:
        chosen = {"n_steps": N_STEPS, "pause_s": 0.005, "engine": plain_star, **options}
        started.append(Trainer(coordinator.address, number, **chosen))
        return started[-1]

    yield trainer
    for one in started:
        one.kill()


def check(trainers: list[Trainer]) -> None:
    """All have the weights of a training without faults."""
    expected = undisturbed(N_STEPS)
    for trainer in trainers:
        end = trainer.end()
        assert (end["committed"], end["digest"]) == (N_STEPS, expected[N_STEPS])
        for step in trainer.steps:
            if step["is_committed"]:
                assert step["digest"] == expected[step["number"]]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_is_killed_and_started_again(cluster: Cluster, start: Start, victim: int) -> None:
    coordinator = cluster.coordinator("--world-size", "3")
    trainers = [start(coordinator, number) for number in range(3)]
    while trainers[victim].next_step()["number"] < 20:
        pass
    trainers[victim].signal(signal.SIGKILL)
    trainers[victim] = start(coordinator, victim, model_seed=99)
    joined = trainers[victim].event("joined")
    assert joined["epoch"] >= 2
    assert joined["committed"] >= 19
    check(trainers)


@pytest.mark.parametrize("victim", [0])
def test_a_worker_that_is_stopped_is_left_behind(cluster: Cluster, start: Start, victim: int) -> None:
    coordinator = cluster.coordinator("--min-workers", "2", "--max-workers", "3", "--form-timeout", "1")
    trainers = [start(coordinator, number, n_steps=10_000) for number in range(3)]
    while trainers[victim].next_step()["number"] < 10:
        pass
    trainers[victim].signal(signal.SIGSTOP)
    watched = trainers[2]
    while watched.next_step()["size"] != 2:
        pass
    trainers[victim].signal(signal.SIGCONT)
    while watched.next_step()["size"] != 3:
        pass


def test_a_training_over_tls(cluster: Cluster, start: Start, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="makes certificates")
    from certificates import Authority

    authority = Authority(tmp_path)
    coordinator = cluster.coordinator("--world-size", "2")
    trainers = []
    for number in range(2):
        cert, key = authority.issue(f"w{number}", f"w{number}")
        engine = EncryptedStar(cert, key, str(authority.file))
        trainers.append(start(coordinator, number, engine=engine))
    check(trainers)
