"""Workers without a stream: the methods of the page that the project follows."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from side_by_side import in_threads

pytest.importorskip("grpc", reason="needs the extra grpc")
from coordinator_process import Cluster, Coordinator

from softs_fast.coordination.job.job import Job
from softs_fast.coordination.job.options import JobOptions
from softs_fast.coordination.server import heartbeats as module
from softs_fast.coordination.server.driver import Driver
from softs_fast.coordination.server.heartbeats import HeartbeatWorkers
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.coordination.wire import requests as r
from softs_fast.errors import PeerLost


@pytest.fixture
def coordinator(cluster: Cluster) -> Coordinator:
    return cluster.coordinator("--world-size", "2")


@pytest.fixture
def clients(coordinator: Coordinator) -> Iterator[list[CoordinatorClient]]:
    clients = [CoordinatorClient(coordinator.address, timeout_s=30.0) for _ in range(2)]
    yield clients
    for client in clients:
        client.close()


def register(clients: list[CoordinatorClient]) -> list[r.RegisterWorkerResponse]:
    """Register all at once: each waits for the others."""
    wishes = [(client, r.RegisterWorkerRequest(f"w{i}", f"host{i}:1")) for i, client in enumerate(clients)]
    return in_threads(lambda wish: wish[0].request(wish[1]), wishes)


def test_register_gives_ranks_and_the_addresses_of_all(clients: list[CoordinatorClient]) -> None:
    answers = register(clients)
    assert sorted(answer.rank for answer in answers) == [0, 1]
    for i, answer in enumerate(answers):
        assert answer.peers[answer.rank] == f"host{i}:1"
        assert sorted(answer.peers) == ["host0:1", "host1:1"]
        assert answer.epoch == 1
    assert clients[0].request(r.HeartbeatRequest("w0")) == r.HeartbeatResponse("OK", 1)
    assert register(clients) == answers, "a member that registers again is told the same"


def test_a_worker_that_leaves_ends_the_epoch_for_the_others(clients: list[CoordinatorClient]) -> None:
    register(clients)
    clients[1].request(r.UnregisterWorkerRequest("w1"))
    answer = clients[0].request(r.HeartbeatRequest("w0"))
    while answer.status == "OK":
        answer = clients[0].request(r.HeartbeatRequest("w0"))
    assert answer == r.HeartbeatResponse("FENCED", 1)
    with pytest.raises(PeerLost, match='"w1" is not registered'):
        clients[1].request(r.HeartbeatRequest("w1"))
    assert [answer.epoch for answer in register(clients)] == [2, 2]


def test_they_work_beside_workers_with_streams(
    cluster: Cluster, coordinator: Coordinator, clients: list[CoordinatorClient]
) -> None:
    other = cluster.worker(coordinator, "w1", at="host1:1")
    other.event("Welcome")
    (answer,) = register(clients[:1])
    assert sorted(answer.peers) == ["host0:1", "host1:1"]
    assert other.event("Table")["epoch"] == answer.epoch


def test_a_checkpoint_is_complete_when_all_have_ended(clients: list[CoordinatorClient]) -> None:
    with pytest.raises(PeerLost, match="no epoch is open"):
        clients[0].request(r.StartCheckpointRequest(3, "/p"))
    register(clients)
    begun = clients[0].request(r.StartCheckpointRequest(3, "/p"))
    assert begun.epoch == 1
    end = [r.EndCheckpointRequest(f"w{i}", 3, begun.checkpoint_id) for i in range(2)]
    assert clients[0].request(end[0]) == clients[0].request(end[0]) == r.EndCheckpointResponse(1)
    assert clients[0].status().checkpoint is None, "one worker counts once"
    clients[1].request(end[1])
    checkpoint = clients[0].status().checkpoint
    assert checkpoint is not None
    assert (checkpoint.epoch, checkpoint.step, checkpoint.path) == (1, 3, "/p")
    for wrong in (end[0], r.EndCheckpointRequest("w0", 4, begun.checkpoint_id)):
        with pytest.raises(PeerLost, match="is not being written"):
            clients[0].request(wrong)


def test_a_fence_aborts_a_checkpoint(clients: list[CoordinatorClient]) -> None:
    register(clients)
    begun = clients[0].request(r.StartCheckpointRequest(3, "/p"))
    clients[1].request(r.UnregisterWorkerRequest("w1"))
    while clients[0].request(r.HeartbeatRequest("w0")).status == "OK":
        pass
    assert [answer.epoch for answer in register(clients)] == [2, 2]
    with pytest.raises(PeerLost, match="epoch 1 is over, and with it the checkpoint"):
        clients[0].request(r.EndCheckpointRequest("w0", 3, begun.checkpoint_id))


def test_without_heartbeats_a_worker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        job = JobOptions("job", 1, 1)
        driver = Driver(Job(job, 1, asyncio.get_running_loop().time()), None)
        workers = HeartbeatWorkers(driver, "job", 4)
        assert (await workers.register(r.RegisterWorkerRequest("w0", "a"), None)).rank == 0
        while driver._connections:
            await driver.changed.wait()
        with pytest.raises(PeerLost, match="is not registered"):
            workers.heartbeat(r.HeartbeatRequest("w0"), None)
        driver.close()

    run(scenario())


def test_a_worker_is_told_of_an_epoch_that_is_to_end_for_another_one() -> None:
    async def scenario() -> None:
        job = JobOptions("job", 1, 2, form_timeout_s=0.05, join_s=0.01)
        driver = Driver(Job(job, 1, asyncio.get_running_loop().time()), None)
        workers = HeartbeatWorkers(driver, "job", 2)
        own, beat = r.RegisterWorkerRequest("w0", "a"), r.HeartbeatRequest("w0")
        assert (await workers.register(own, None)).epoch == 1
        joining = asyncio.ensure_future(workers.register(r.RegisterWorkerRequest("w1", "b"), None))
        while workers.heartbeat(beat, None).status == "OK":
            await driver.changed.wait()
        assert driver.keys.table is not None, "it ends after this step"
        both = await asyncio.gather(workers.register(own, None), joining)
        assert [answer.epoch for answer in both] == [2, 2]
        assert workers.heartbeat(beat, None).status == "OK"
        workers.close()
        driver.close()

    run(scenario())


def test_a_worker_acts_for_itself_only() -> None:
    async def scenario() -> None:
        driver = Driver(Job(JobOptions("job", 1, 1), 1, asyncio.get_running_loop().time()), None)
        workers = HeartbeatWorkers(driver, "job", 1)
        with pytest.raises(PeerLost, match='has proven to be "w1"; it can act for itself only'):
            await workers.register(r.RegisterWorkerRequest("w0", "a"), "w1")
        await workers.register(r.RegisterWorkerRequest("w0", "a"), "w0")
        with pytest.raises(PeerLost, match="the most that may be"):
            await workers.register(r.RegisterWorkerRequest("w1", "a"), "w1")
        for call in (workers.heartbeat, workers.unregister):
            with pytest.raises(PeerLost, match="act for itself only"):
                call(module.HeartbeatRequest("w0"), "w1")  # type: ignore[arg-type, operator]
        begin = r.StartCheckpointRequest(3, "/p")
        for _ in range(2 * module._MOST_CHECKPOINTS):
            # What is no member takes no place of the members' checkpoints.
            with pytest.raises(PeerLost, match='"w1" is no member of epoch 1'):
                workers.start_checkpoint(begin, "w1")
        assert workers.start_checkpoint(begin, "w0").checkpoint_id
        driver.close()
        workers.close()

    run(scenario())


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def watched() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(watched())
