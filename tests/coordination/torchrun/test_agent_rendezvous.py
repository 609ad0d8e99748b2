"""The rendezvous of agents, without torchrun: what each of its methods says in the life of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from coordinator_process import Cluster, Coordinator
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)
from waiting import WATCHDOG_S, eventually

from softs_fast.coordination.job.events import End
from softs_fast.coordination.torchrun.rendezvous import CoordinatorRendezvous
from softs_fast.errors import ConfigError

Make = Callable[..., CoordinatorRendezvous]


@pytest.fixture(scope="module", autouse=True)
def first_store() -> None:
    """The first server of a process makes a pipe for signals, which stays: it is none of a test."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes agents' sides of a rendezvous, which end with the test."""
    made: list[CoordinatorRendezvous] = []

    def handler(
        coordinator: Coordinator, seat: int, nnodes: tuple[int, int] = (1, 4), **config: object
    ) -> CoordinatorRendezvous:
        made.append(
            CoordinatorRendezvous(
                RendezvousParameters("softs", coordinator.address, "job", *nnodes, seat=str(seat), **config)
            )
        )
        return made[-1]

    yield handler
    for one in made:
        one.shutdown()


def meet(*handlers: CoordinatorRendezvous) -> list[RendezvousInfo]:
    """Have handlers meet; what each of them is told."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        met: list[Future[RendezvousInfo]] = [pool.submit(one.next_rendezvous) for one in handlers]
        return [one.result(WATCHDOG_S) for one in met]


def test_agents_meet_and_share_stores(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    handlers = [make(coordinator, seat) for seat in range(2)]
    infos = meet(*handlers)
    assert [(info.rank, info.world_size) for info in infos] == [(0, 2), (1, 2)]
    # As torchrun does when it numbers the ranks, and when it ends.
    infos[1].store.set("role/1", "b")
    infos[0].store.set("role/0", "a")
    assert infos[0].store.multi_get(["role/0", "role/1"]) == [b"a", b"b"]
    infos[0].store.multi_set(["rank/0", "rank/1"], ["x", "y"])
    assert infos[1].store.get("rank/1") == b"y"
    assert handlers[0].use_agent_store
    places = [info.bootstrap_store_info for info in infos]
    assert places[0] == places[1]
    assert places[1] is not None
    client = TCPStore(places[1].master_addr, places[1].master_port, is_master=False)
    client.set("by a worker", "1")
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]
    assert not any(handler.is_closed() for handler in handlers)
    assert {(handler.get_backend(), handler.get_run_id()) for handler in handlers} == {("softs", "job")}


def test_an_agent_that_fails_begins_a_new_epoch_of_all(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    handlers = [make(coordinator, seat) for seat in range(2)]
    meet(*handlers)
    with ThreadPoolExecutor(1) as pool:
        # As torchrun does when workers of its node have failed.
        again = pool.submit(handlers[0].next_rendezvous)
        eventually(lambda: handlers[1].num_nodes_waiting() == 1)
        other = handlers[1].next_rendezvous()
        assert (again.result(WATCHDOG_S).rank, other.rank) == (0, 1)
    assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0]


def test_an_agent_that_comes_later_begins_a_new_epoch_of_all(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2")
    coordinator.resize(1, 1)
    first, second = make(coordinator, 0), make(coordinator, 1)
    [info] = meet(first)
    assert (info.rank, info.world_size) == (0, 1)
    coordinator.resize(1, 2)
    with ThreadPoolExecutor(1) as pool:
        came = pool.submit(second.next_rendezvous)
        eventually(lambda: first.num_nodes_waiting() == 1)
        assert first.next_rendezvous().world_size == 2
        assert came.result(WATCHDOG_S).rank == 1


def test_an_agent_that_is_done_does_not_disturb_the_others(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2")
    handlers = [make(coordinator, seat) for seat in range(2)]
    meet(*handlers)
    handlers[0].shutdown()
    assert handlers[0].is_closed()
    assert coordinator.status(lambda status: status.phase == "fenced").fences[-1].cause == "left"
    eventually(lambda: handlers[1]._member.fence is not None)
    assert handlers[1].num_nodes_waiting() == 0
    # If its workers need the others after all, it meets those that are left.
    assert handlers[1].next_rendezvous().world_size == 1


def test_an_agent_that_has_failed_for_good_is_waited_for(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    handlers = [make(coordinator, seat) for seat in range(2)]
    meet(*handlers)
    try:
        raise ValueError("as torchrun when it ends")
    except ValueError:
        handlers[0].shutdown()
    eventually(lambda: handlers[1].num_nodes_waiting() == 1)
    handlers[0] = make(coordinator, 0)
    assert [info.world_size for info in meet(*handlers)] == [2, 2]


def test_the_end_of_the_job_ends_agents(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "1")
    handler = make(coordinator, 0)
    meet(handler)
    coordinator.administer(End("enough"))
    eventually(lambda: handler.num_nodes_waiting() == 1)
    with pytest.raises(RendezvousClosedError, match="the job has ended: enough"):
        handler.next_rendezvous()
    assert handler.is_closed()


def test_a_closed_rendezvous_has_no_epoch(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "1")
    handler = make(coordinator, 0)
    meet(handler)
    handler.set_closed()
    assert handler.is_closed()
    with pytest.raises(RendezvousClosedError, match="all members have left"):
        handler.next_rendezvous()


def test_no_epoch_in_time(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    with pytest.raises(RendezvousTimeoutError, match=r'"worker-0" is in no epoch in time; .* status says'):
        make(coordinator, 0, timeout="0.2").next_rendezvous()


def test_another_number_of_nodes_than_torchrun_was_given(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "1")
    with pytest.raises(
        RendezvousStateError, match="an epoch of 1 nodes, and torchrun was given --nnodes 2:2"
    ):
        make(coordinator, 0, nnodes=(2, 2)).next_rendezvous()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            {"join_timeout": "5"},
            r"--rdzv-conf has 'join_timeout'; this backend knows seat, worker_id, timeout",
        ),
        ({"seat": "-1"}, "seat in --rdzv-conf is '-1'; need a whole number"),
        ({"timeout": "soon"}, "timeout in --rdzv-conf is 'soon'; need seconds"),
        ({"timeout": "0"}, "timeout in --rdzv-conf is '0'; need seconds"),
        ({"cert": "a.pem"}, "a certificate needs its key"),
    ],
)
def test_wrong_options(config: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CoordinatorRendezvous(RendezvousParameters("softs", "127.0.0.1:1", "job", 1, 1, **config))


def test_torch_knows_the_backend() -> None:
    made = rendezvous_handler_registry.create_handler(
        RendezvousParameters("softs", "127.0.0.1:1", "job", 1, 1)
    )
    assert isinstance(made, CoordinatorRendezvous)
    made = rendezvous_handler_registry.create_handler(
        RendezvousParameters("softs", "softs://127.0.0.1:1/job", "job", 1, 1)
    )
    assert isinstance(made, CoordinatorRendezvous)
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        rendezvous_handler_registry.create_handler(RendezvousParameters("softs", "", "job", 1, 1))
