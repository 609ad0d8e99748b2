"""Membership without an engine: epochs that end for different reasons, and what a member is told of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from coordinator_process import Cluster, Coordinator
from side_by_side import in_threads
from torch.distributed import PrefixStore
from waiting import WATCHDOG_S, eventually

from softs_fast.coordination.job.events import Drain, End
from softs_fast.coordination.node import Membership
from softs_fast.durable import verify_manifest
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.loader.ranks import place_of_process

Make = Callable[..., Membership]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes members that have begun to connect, and end with the test."""
    made: list[Membership] = []

    def member(coordinator: Coordinator, seat: int, **more: Any) -> Membership:
        made.append(Membership(coordinator.address, seat=seat, **more).start())
        return made[-1]

    yield member
    for one in made:
        one.close()


def meet(*members: Membership) -> None:
    """Have members begin an epoch: none waits for another one."""
    in_threads(lambda member: member.next_epoch(WATCHDOG_S), members)


def test_the_end_of_an_epoch_is_told_at_once(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    ended: list[str] = []
    has_ended = threading.Event()

    def on_end(reason: str) -> None:
        ended.append(reason)
        has_ended.set()

    lives, fails = make(coordinator, 0, on_end=on_end), make(coordinator, 1)
    meet(lives, fails)
    assert lives.fence is None
    fails.progress(7)
    fails.close(leaves=False)
    assert has_ended.wait(WATCHDOG_S)
    assert ended == ['rank 1, seat 1 ("worker-1") is gone']
    assert lives.fence is not None
    assert lives.fence.cause == "gone"
    again = make(coordinator, 1)
    meet(lives, again)
    assert lives.fence is None
    assert place_of_process() in {(0, 2), (1, 2)}, (
        "loaders take the samples of the member that met last in this process"
    )
    status = coordinator.status(lambda status: status.phase == "open")
    assert status.epoch == 2


def test_a_member_that_begins_anew_says_why_and_in_which_step(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    members = [make(coordinator, seat) for seat in range(2)]
    meet(*members)
    members[0].progress(7)
    waits = threading.Thread(target=members[0].next_epoch, args=[WATCHDOG_S, "no more memory"])
    waits.start()
    eventually(lambda: members[1].fence)
    assert members[1].fence is not None
    assert members[1].fence.text == 'rank 0, seat 0 ("worker-0") failed in step 7: no more memory'
    members[1].next_epoch(WATCHDOG_S)
    waits.join()


def test_a_checkpoint_is_what_the_next_table_names(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    members = [make(coordinator, seat) for seat in range(2)]
    meet(*members)
    for member in members:
        with member.checkpoint("/a", 10):
            pass
    coordinator.status(lambda status: status.checkpoint is not None)
    with members[0].checkpoint("/b", 20):
        pass
    with pytest.raises(ValueError, match="a full disk"), members[1].checkpoint("/b", 20):
        raise ValueError("a full disk")
    waits = threading.Thread(target=members[0].next_epoch, args=[WATCHDOG_S])
    waits.start()
    eventually(lambda: members[1].fence)
    epoch = members[1].next_epoch(WATCHDOG_S)
    waits.join()
    assert (epoch.table.checkpoint, epoch.table.resume_step) == ("/a", 10)
    assert epoch.table.survivors == ()


def test_of_the_checkpoints_the_newest_one_that_is_whole_is_used(
    cluster: Cluster, make: Make, tmp_path: Path
) -> None:
    coordinator = cluster.coordinator("--world-size", "2")
    members = [make(coordinator, seat) for seat in range(2)]

    def begin_one(member: Membership) -> tuple[str, int] | str:
        try:
            table = member.next_epoch(WATCHDOG_S).table
        except PeerLost as error:
            return str(error)
        return Path(table.checkpoint).name, table.resume_step

    def begin() -> list[tuple[str, int] | str]:
        return in_threads(begin_one, members)

    begin()
    for step in (10, 20):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        for number, member in enumerate(members):
            with member.checkpoint(str(folder), step):
                (folder / f"part-{number}").write_bytes(bytes(100) + bytes([step]))
        assert verify_manifest(folder, "save") == {"part-0", "part-1"}
    coordinator.status(lambda status: status.checkpoint is not None and status.checkpoint.step == 20)
    (tmp_path / "step-20" / "part-1").write_bytes(bytes(101))
    assert begin() == [("step-10", 10)] * 2
    (tmp_path / "step-10" / "part-0").unlink()
    for text in begin():
        assert isinstance(text, str)
        assert "step-10 of step 10 damaged, and there is no other one; restore it, and begin again" in text


def test_members_meet_in_their_store(cluster: Cluster, make: Make) -> None:
    """Of torch's kind, with errors of ours; what waits in it ends with the epoch."""
    coordinator = cluster.coordinator("--world-size", "2")
    members = [make(coordinator, seat) for seat in range(2)]

    def run(member: Membership) -> Any:
        epoch = member.next_epoch(WATCHDOG_S)
        epoch.meet(WATCHDOG_S)
        return epoch

    epochs = in_threads(run, members)
    assert [(epoch.rank, epoch.size) for epoch in epochs] == [(0, 2), (1, 2)]
    one, two = (PrefixStore("of both", epoch.store) for epoch in epochs)
    one.set("k", "value")
    assert two.get("k") == b"value"
    assert (one.add("n", 7), two.add("n", -2)) == (7, 5)
    assert two.check(["k", "n"])
    assert not two.check(["k", "nothing"])
    # torch does not pass this one on.
    assert [epochs[0].store.delete_key(f"of both/{key}") for key in ("k", "k")] == [True, False]
    with pytest.raises(PeerLost, match="'of both/nothing'"):
        one.wait(["nothing"], timedelta(milliseconds=50))

    def end(waits: bool) -> str:
        if not waits:
            return coordinator.administer(End("enough"))[0]
        with pytest.raises(PeerLost) as raised:
            one.get("never")
        return str(raised.value)

    assert "epoch 1 is over" in in_threads(end, [True, False])[0]
    eventually(lambda: members[0].is_over)
    with pytest.raises(PeerLost, match="enough"):
        members[0].next_epoch(WATCHDOG_S)


def test_a_planned_end_waits_for_the_members(cluster: Cluster, make: Make) -> None:
    coordinator = cluster.coordinator("--min-workers", "1", "--max-workers", "2")
    coordinator.resize(1, 1)
    ended: list[str] = []
    first = make(coordinator, 0, on_end=ended.append)
    meet(first)
    coordinator.resize(1, 2)
    second = make(coordinator, 1)
    eventually(lambda: first.fence)
    assert first.fence is not None
    assert (first.fence.cause, first.fence.planned) == ("joined", True)
    meet(first, second)
    coordinator.administer(Drain(0, "maintenance"))
    eventually(lambda: first.fence)
    assert first.fence.cause == "drained"
    with pytest.raises(PeerLost, match="has left the job"):
        first.next_epoch(WATCHDOG_S)


def test_arguments() -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        Membership("no where")
    with pytest.raises(ConfigError, match="job 'speech' contradicts 'digits' of the place"):
        Membership("softs://127.0.0.1:1/digits", job="speech")
    member = Membership("127.0.0.1:1", seat=0)
    with pytest.raises(PeerLost, match="is in no epoch in time"):
        member.next_epoch(0.01)
    member.close()
    member.close()
    with pytest.raises(PeerLost, match="has left the job"):
        member.next_epoch(0.01)
