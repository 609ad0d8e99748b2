"""Boards of groups of several hosts, in one process: what is summed, what is refused, and what ends."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from memory_channel import Post, open_boards
from two_hosts import publish, take, tensors
from waiting import eventually

from softs_fast.averaging import Refused
from softs_fast.averaging.hosts.channel import PIECE_BYTES
from softs_fast.averaging.hosts.group_board import (
    MAX_MIRRORS,
    GatheredMembers,
    GroupBoard,
    exchange_greetings,
    in_parts,
)
from softs_fast.averaging.reports import MAX_REPORTS, Report
from softs_fast.errors import ConfigError, PeerLost
from softs_fast.records import replace
from softs_fast.snapshots import SnapshotLayout, Window


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens boards, and closes them."""
    made: list[GroupBoard] = []

    def open_(hosts: Sequence[int], models: Any = None) -> tuple[Post, list[GroupBoard]]:
        post, boards = open_boards(hosts, models)
        made.extend(boards)
        return post, boards

    yield open_
    for board in made:
        board.close()


def see(board: GroupBoard, versions: dict[int, int]) -> None:
    """Wait until a board shows these versions."""
    eventually(
        lambda: {one.rank: one.version for one in board.members() if one.alive} == versions,
        f"rank {board.rank} sees {versions}",
    )


def test_more_donors_of_other_hosts_than_fit_are_summed_in_parts(opened: Any) -> None:
    n_donors = 2 * MAX_MIRRORS + 3
    _, boards = opened([0, 0, *[1] * n_donors])
    chance = torch.Generator().manual_seed(1)
    weights = {}
    for board in boards[1:]:
        weights[board.rank] = 0.01 + float(torch.rand((), generator=chance))
        board.publish(
            {**tensors(0.0), "weight": torch.randn(1000, generator=chance), "count": torch.tensor(board.rank)},
            step=board.rank, metric=None, trained=1, config=None,
        )  # fmt: skip
    see(boards[0], dict.fromkeys(range(1, n_donors + 2), 1))
    donors = list(weights.items())
    found = take(boards[0], donors)
    assert not isinstance(found, Refused), found
    assert [(one.rank, one.weight, one.version, one.step) for one in found.donations] == [
        (rank, weight, 1, rank) for rank, weight in donors
    ]
    into = tensors(-1.0)
    found.apply(into)
    chance.manual_seed(1)
    total = torch.zeros(1000)
    for weight in weights.values():
        torch.rand((), generator=chance)
        total += torch.tensor(weight) * torch.randn(1000, generator=chance)
    assert torch.equal(into["weight"], total)
    assert into["count"] == n_donors + 1


def test_donors_are_taken_in_order_in_parts_of_a_size() -> None:
    def parts(ranks: list[int], size: int) -> list[list[int]]:
        return [
            [rank for rank, _ in part] for part in in_parts([(r, 1.0) for r in ranks], {1, 2, 3, 4, 5}, size)
        ]

    assert parts([10, 1, 2, 11, 3, 12], 2) == [[10, 1, 2, 11], [3, 12]]
    assert parts([1, 2], 2) == [[1, 2]]
    assert parts([10, 11], 1) == [[10, 11]]
    assert parts([1, 2, 3], 1) == [[1], [2], [3]]


def test_a_donor_answers_with_its_newest_version_and_asks_reach_it(opened: Any) -> None:
    _, (reader, donor) = opened([0, 1])
    publish(donor, 1.0)
    see(reader, {1: 1})
    assert not donor.is_asked()
    reader.ask([1])
    eventually(donor.is_asked, "the donor is asked")
    publish(donor, 2.0, config={"lr": 0.5})
    assert not donor.is_asked()
    see(reader, {1: 2})
    found = take(reader, [(1, 1.0)])
    assert not isinstance(found, Refused)
    (one,) = found.donations
    assert (one.version, one.step, one.metric, one.config) == (2, 2, 2.0, {"lr": 0.5})
    assert one.age_s >= 0
    eventually(
        lambda: "softs-averaging-donor" not in {thread.name for thread in threading.enumerate()},
        "a thread that has sent a version ends",
    )


def test_reports_reach_ranks_of_this_host_and_of_others(opened: Any) -> None:
    _, boards = opened([0, 0, 1])
    told = [Report(check, math.inf if check % 2 else None, check) for check in range(1, MAX_REPORTS + 3)]
    for report in told:
        boards[0].report(report)
    for reader in boards[1:]:
        eventually(
            lambda reader=reader: (
                [one.reports for one in reader.members() if one.rank == 0] == [tuple(told[-MAX_REPORTS:])]
            ),
            f"rank {reader.rank} has the reports",
        )
        assert reader.is_fixed


def test_weights_that_are_not_finite_are_refused_by_name(opened: Any) -> None:
    _, (reader, donor, other) = opened([0, 1, 2])
    for board, value in ((donor, math.nan), (other, 1.0)):
        board.publish(
            {**tensors(1.0), "weight": torch.full((1000,), value)}, step=1, metric=0.5, trained=1, config=None
        )
    see(reader, {1: 1, 2: 1})
    found = take(reader, [(2, 0.5), (1, 0.5)])
    assert found == Refused(1, "a weight of it is not finite")
    assert not isinstance(take(reader, [(2, 1.0)]), Refused)


def test_a_donor_without_a_version_is_refused(opened: Any) -> None:
    _, (reader, _) = opened([0, 1])
    see(reader, {1: 0})
    assert take(reader, [(1, 1.0)]) == Refused(1, "it has no version that is whole")


def test_ranks_with_other_tensors_are_described(opened: Any) -> None:
    _, boards = opened([0, 1, 1], [tensors(0.0), tensors(0.0, 5), tensors(0.0)])
    digests = {one.rank: one.digest for one in boards[0].members()}
    assert digests[1] != digests[2]
    eventually(lambda: '"weight"' in boards[0].difference(1), "the other tensors are known")
    assert boards[0].difference(1) == '"weight": float32 [1000] here, float32 [5] on rank 1'
    eventually(lambda: '"weight"' in boards[1].difference(0), "the other tensors are known")
    publish(boards[1], 1.0, 5)
    see(boards[0], {1: 1, 2: 0})
    refused = take(boards[0], [(1, 1.0)])
    assert isinstance(refused, Refused)
    assert refused.rank == 1
    assert "bytes" in refused.reason


@pytest.mark.parametrize("what", ["seal", "size", "version"])
def test_what_a_donor_sends_is_not_used_unless_it_is_what_it_has_offered(opened: Any, what: str) -> None:
    post, (reader, donor) = opened([0, 1])
    publish(donor, 1.0)
    see(reader, {1: 1})
    say = donor._courier._post

    def say_another(rank: int, message: Any) -> None:
        if what == "size":
            message = replace(message, n_bytes=message.n_bytes - 64)
        elif what == "version":
            message = replace(message, header=replace(message.header, version=2))
        say(rank, message)

    donor._courier._post = say_another
    if what == "seal":
        post.change = lambda piece: piece.flip(0) if len(piece) == 16 else piece
    refused = take(reader, [(1, 1.0)])
    assert isinstance(refused, Refused)
    assert refused.rank == 1
    assert ("bytes of another version" in refused.reason) == (what != "size")


def test_a_large_version_arrives_whole_in_pieces(opened: Any) -> None:
    n = PIECE_BYTES  # of float32: four pieces, and a part of one
    _, (reader, donor) = opened([0, 1], [tensors(0.0, n), tensors(0.0, n)])
    sent = {**tensors(3.0, n), "weight": torch.arange(n, dtype=torch.float32)}
    donor.publish(sent, step=1, metric=0.5, trained=1, config=None)
    see(reader, {1: 1})
    found = take(reader, [(1, 1.0)])
    assert not isinstance(found, Refused)
    into = tensors(0.0, n)
    found.apply(into)
    for name, tensor in sent.items():
        assert torch.equal(into[name], tensor)


def test_a_rank_that_is_cut_off_is_given_up_and_named(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    post, (reader, donor, _) = opened([0, 1, 2])
    publish(donor, 1.0)
    see(reader, {1: 1, 2: 0})
    post.broken.add(1)
    reader.ask([1])
    see(reader, {2: 0})
    assert "rank 1 of another host is given up: the wire is cut" in caplog.text
    assert take(reader, [(1, 1.0)]) == Refused(1, "it says nothing any more")


def test_a_rank_that_sends_what_is_no_message_is_given_up(
    opened: Any, caplog: pytest.LogCaptureFixture
) -> None:
    post, (reader, _) = opened([0, 1])
    see(reader, {1: 0})
    post.messages[0].put((1, b"\x63"))
    see(reader, {})
    assert "rank 1 of another host is given up" in caplog.text


def test_without_any_way_to_other_hosts_those_of_this_host_remain(
    opened: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, (reader, neighbour, _) = opened([0, 0, 1])
    publish(neighbour, 2.0)
    see(reader, {1: 1, 2: 0})

    def fail() -> Any:
        raise PeerLost("the store has gone")

    monkeypatch.setattr(reader._courier._channel, "receive", fail)
    see(reader, {1: 1})
    assert "rank 0 has no way to other hosts any more: the store has gone" in caplog.text
    reader._courier._thread.join()
    assert not reader.is_asked()
    assert not isinstance(take(reader, [(1, 1.0)]), Refused)


def test_closing_ends_all_threads_and_a_fetch_that_waits(opened: Any) -> None:
    post, (reader, donor) = opened([0, 1])
    publish(donor, 1.0)
    see(reader, {1: 1})
    # The donor's answer never comes.
    post.messages[1] = type(post.messages[1])()
    donor._courier._channel.receive = list
    reader.fetch([(1, 1.0)])
    reader.close()
    reader.close()
    assert reader.members() == []
    donor.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith(("softs-averaging", "softs-fetch")) for name in names), names


def test_a_rank_that_leaves_is_no_member_any_more(opened: Any) -> None:
    _, (reader, other) = opened([0, 1])
    publish(other, 1.0)
    see(reader, {1: 1})
    other.close()
    eventually(lambda: reader.members() == [], "the rank has left")


def test_a_group_of_one_host_has_no_messages(opened: Any) -> None:
    post, boards = opened([0, 0])
    publish(boards[1], 1.0)
    see(boards[0], {1: 1})
    assert not isinstance(take(boards[0], [(1, 1.0)]), Refused)
    assert post.threads == set()


def test_only_a_thread_of_its_own_sends(opened: Any) -> None:
    post, (reader, donor) = opened([0, 1])
    publish(donor, 1.0)
    see(reader, {1: 1})
    reader.ask([1])
    take(reader, [(1, 1.0)])
    assert post.threads == {"softs-averaging-hosts"}


def test_copies_that_are_in_use_are_shared_and_freed(opened: Any) -> None:
    _, (_, donor) = opened([0, 1])
    publish(donor, 1.0)
    copies = donor._courier._copies
    one = copies.newest()
    assert copies.newest() is one
    publish(donor, 2.0)
    two = copies.newest()
    assert (one.headers[0].version, two.headers[0].version) == (1, 2)
    del one, two
    gc.collect()
    assert copies._last() is None


@pytest.mark.parametrize("said", [b"{}", b"[", b'{"host": 1, "window": {}, "digest": "", "nonce": ""}'])
def test_a_rank_of_another_version_is_named(said: bytes) -> None:
    with (
        Window(SnapshotLayout.of(tensors(0.0))) as window,
        pytest.raises(ConfigError, match="rank 1 of the group says"),
    ):
        exchange_greetings(window, window, "host", lambda own: [own, said])


def test_ranks_of_this_host_are_known_while_they_are_alive() -> None:
    layout = SnapshotLayout.of(tensors(0.0))
    with Window(layout) as theirs:
        address = theirs.address
        group = GatheredMembers({1: address})
        assert [member.rank for member in group.refresh()] == [1]
        theirs.close()
        assert group.refresh() == []
        # A rank that has left before the others open its window.
        assert GatheredMembers({1: address}).refresh() == []
        group.close()
        group.close()
