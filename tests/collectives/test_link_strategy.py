"""LinkStrategy: right results, and what becomes of a group that a rank leaves, or to which it does not belong.

The time-outs of most groups are longer than those of the tests: only connections that end, or are ended, end the calls.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from lost_ranks import NEVER_S, SOON_S, keep, until_lost, until_stopped
from waiting import eventually

from softs_fast.collectives import DTYPE_CODES, LinkStrategy, ReduceOp, link_engine
from softs_fast.collectives.link_engine import LinkEngine
from softs_fast.errors import ConfigError, PeerLost, WireError
from softs_fast.kernels import reduce
from softs_fast.trust import Address, rotate_token, write_token

SIZE = 4
N = 1 << 18
LARGE = 16 << 20


@pytest.fixture
def token(tmp_path: Path) -> str:
    pytest.importorskip("cryptography", reason="makes certificates")
    write_token(tmp_path / "token")
    return str(tmp_path / "token")


def connected(rank: int, size: int, folder: str, timeout_s: float = NEVER_S, **options: Any) -> LinkStrategy:
    return LinkStrategy(timeout_s=timeout_s, **options).init(rank, size, folder)


# --- Results ---


def values(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    """Return values of a rank with sums that are rounded, and overflow where they are of integers."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    return (60 * torch.randn(count, generator=generator)).to(dtype)


def calls(strategy: LinkStrategy, rank: int, size: int) -> Iterator[str]:
    """Make each call with each dtype, and sizes around those of chunks; yield the first bits of all results."""
    for dtype, count in itertools.product(DTYPE_CODES, (0, 1, 3, 64, 65, 1000, 4999)):
        every = [values(dtype, count, other) for other in range(size)]
        for op in ReduceOp:
            if dtype is torch.bool and op is ReduceOp.MEAN:
                continue
            wanted = torch.empty(count, dtype=dtype)
            if count:
                reduce(every, wanted, op)
            tensor = every[rank].clone()
            strategy.all_reduce(tensor, op)
            assert torch.equal(tensor, wanted), (dtype, count, op)
            strided = torch.zeros(2, count, dtype=dtype).t()
            strided[:, 1] = every[rank]
            strategy.all_reduce(strided[:, 1], op)
            assert torch.equal(strided[:, 1], wanted)
            assert not strided[:, 0].any()
            # Of parts with no, some and many elements.
            bounds = [0, *(count * (other + 1) ** 2 // size**2 for other in range(size))]
            own = every[rank][bounds[rank] : bounds[rank + 1]]
            with strategy.engine.call("reduce_scatter"):
                # Into the part itself.
                strategy.engine.reduce_scatter(own, every[rank], bounds, op)
            assert torch.equal(own, wanted[bounds[rank] : bounds[rank + 1]])
            every[rank] = values(dtype, count, rank)
        for root in range(size):
            tensor = every[rank].clone()
            strategy.broadcast_tensor(tensor, root)
            assert torch.equal(tensor, every[root])
        gathered = torch.empty(count, size, dtype=dtype).t()
        strategy.all_gather(gathered, every[rank])
        assert torch.equal(gathered, torch.stack(every))
        yield f"{dtype} {count}"


def makes_all_calls(say: Callable[[Any], None], rank: int, size: int, folder: str) -> int:
    # A few chunks, and slices of them that are not equal.
    link_engine._CHUNK_BYTES, link_engine._SMALL_BYTES = 4000, 64
    with connected(rank, size, folder) as strategy:
        return len(list(calls(strategy, rank, size)))


@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.full)])
def test_results_are_those_of_one_reduction_in_the_order_of_the_ranks(tmp_path: Path, size: int) -> None:
    assert ranks.run(makes_all_calls, size, str(tmp_path)) == [7 * len(DTYPE_CODES)] * size


def exchanges(say: Callable[[Any], None], rank: int, size: int, folder: str) -> list[bytes]:
    """Send several messages of other lengths to each other rank, and none to one of them."""
    with connected(rank, size, folder) as strategy, strategy.engine.call("exchange"):
        assert isinstance(strategy.engine, LinkEngine)
        received = [bytearray(2), bytearray(0), bytearray(rank)]
        after, before = (rank + 1) % size, (rank - 1) % size
        sends = [(after, bytes([rank, 7])), (after, b""), (after, b"x" * after)]
        strategy.engine.exchange(sends, [(before, one) for one in received])
        return [bytes(one) for one in received]


def test_messages_of_any_lengths_arrive_in_order(tmp_path: Path) -> None:
    told = ranks.run(exchanges, 3, str(tmp_path))
    assert told == [[bytes([(rank - 1) % 3, 7]), b"", b"x" * rank] for rank in range(3)]


def waits_for_ever(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    with connected(rank, size, folder, float("inf")) as strategy:
        strategy.barrier()


def test_a_time_out_may_be_infinite(tmp_path: Path) -> None:
    ranks.run(waits_for_ever, 2, str(tmp_path))


def test_a_rank_that_is_shut_down_does_not_wait_for_others() -> None:
    mesh, other = (link_engine.listen(None, name) for name in ("one", "other"))
    places = [(mesh.endpoint, mesh.key), (other.endpoint, other.key)]
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(mesh.join, 0, places, SOON_S)
        time.sleep(0.5)
        mesh.shut_down()
        with pytest.raises(PeerLost, match="this rank has left the group"):
            joined.result()


def closes_after_its_last_call(say: Callable[[Any], None], rank: int, size: int, folder: str) -> bool:
    with connected(rank, size, folder) as strategy:
        tensor = torch.full((LARGE,), float(rank), dtype=torch.float16)
        strategy.all_reduce(tensor)
    return bool(tensor.eq(sum(range(size))).all())


def test_a_rank_that_closes_takes_no_result_from_a_slower_one(tmp_path: Path) -> None:
    for turn in range(3):
        assert ranks.run(closes_after_its_last_call, 3, str(tmp_path / str(turn))) == [True] * 3


# --- Ends ---


def reduces_until_lost(
    say: Callable[[Any], None], rank: int, size: int, folder: str, options: dict[str, Any]
) -> None:
    strategy = connected(rank, size, folder, **options)
    say(os.getpid())
    text = until_lost(strategy, torch.zeros(LARGE))
    say((text, strategy.lost))
    keep(strategy)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_killed_rank_ends_the_calls_of_all_and_is_named(
    tmp_path: Path, token: str, is_encrypted: bool
) -> None:
    options = {"token_file": token} if is_encrypted else {}
    with ranks.start(reduces_until_lost, SIZE, str(tmp_path), options) as running:
        pids = [running.receive(rank) for rank in range(SIZE)]
        time.sleep(0.1)  # into the middle of a call
        os.kill(pids[1], signal.SIGKILL)
        for rank in (0, 2, 3):
            text, lost = running.receive(rank)
            assert "all_reduce among 4 ranks failed: rank 1" in text
            assert lost == [1]


def gives_up(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    strategy = connected(rank, size, folder)
    if rank == 1:
        # From another thread, while it waits for a rank that has not come.
        threading.Timer(0.2, strategy.give_up, args=["out of data"]).start()
    elif rank == 0:
        eventually(Path(folder, "gave up").exists)
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(torch.ones(N))
    if rank == 1:
        Path(folder, "gave up").touch()
    say(str(raised.value))
    keep(strategy)


def test_a_rank_that_gives_up_ends_its_calls_and_those_that_wait_for_it(tmp_path: Path) -> None:
    """Ranks 2 and 3 wait for rank 0 alone, which learns of it when it comes."""
    with ranks.start(gives_up, SIZE, str(tmp_path)) as running:
        assert running.receive(1) == "out of data"
        assert {running.receive(rank) for rank in (0, 2, 3)} == {"rank 1 gave up: out of data"}


def comes_too_late(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    with connected(rank, size, folder, SOON_S) as strategy:
        if rank == 2:
            keep(strategy)
        with pytest.raises(PeerLost) as raised:
            strategy.barrier()
        return str(raised.value)


def test_a_rank_that_does_not_come_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    with ranks.start(comes_too_late, 3, str(tmp_path)) as running:
        for rank in (0, 1):
            assert "from rank 2" in running.receive(rank)


def goes_on_without_a_stopped_rank(say: Callable[[Any], None], rank: int, size: int, folder: str) -> Any:
    strategy = connected(rank, size, folder)
    say(os.getpid())
    tensor = torch.full((N,), float(rank))
    if rank == 1:
        # Before it takes part.
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        threading.Timer(0.2, strategy.give_up, args=["rank 1 is too late"]).start()
    with pytest.raises(PeerLost) as raised:
        strategy.all_reduce(tensor)
    if rank == 1:
        return ""
    # Of the other rank, if that one was first.
    assert str(raised.value).endswith("rank 1 is too late")
    with connected(rank // 2, size - 1, f"{folder}/next") as following:
        # In the same memory, which a late write of the call before would change.
        tensor.fill_(1.0)
        following.all_reduce(tensor)
        say("reduced")
        with open(Path(folder, f"resumed{rank}")) as pipe:
            assert pipe.read() == "resumed"
        following.barrier()
        return torch.equal(tensor, torch.full((N,), 2.0))


def test_a_stopped_rank_writes_nothing_into_the_next_step(tmp_path: Path) -> None:
    pipes = [tmp_path / f"resumed{rank}" for rank in (0, 2)]
    for pipe in pipes:
        os.mkfifo(pipe)
    with ranks.start(goes_on_without_a_stopped_rank, 3, str(tmp_path)) as running:
        pids = [running.receive(rank) for rank in range(3)]
        assert [running.receive(0), running.receive(2)] == ["reduced", "reduced"]
        until_stopped(pids[1])
        os.kill(pids[1], signal.SIGCONT)
        assert running.receive(1) == ""
        for pipe in pipes:
            pipe.write_text("resumed")
        assert [running.receive(0), running.receive(2)] == [True, True]


def is_stopped_in_a_call(
    say: Callable[[Any], None], rank: int, size: int, folder: str, options: dict[str, Any]
) -> bool:
    strategy = connected(rank, size, folder, **options)
    tensor = torch.full((LARGE,), float(rank + 1))
    say(os.getpid())
    if rank == 1:
        exchange, left = LinkEngine.exchange, iter(range(8))

        def stopping(engine: LinkEngine, sends: Any, receives: Any) -> None:
            # With data of the others on its way: in the middle of the all-reduce.
            if next(left, None) == 7:
                threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGSTOP]).start()
            exchange(engine, sends, receives)

        LinkEngine.exchange = stopping  # type: ignore[method-assign]
    strategy.all_reduce(tensor)
    strategy.barrier()
    strategy.close()
    return bool(tensor.eq(sum(range(1, size + 1))).all())


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_call_goes_on_when_a_rank_that_was_stopped_does(
    tmp_path: Path, token: str, is_encrypted: bool
) -> None:
    """Its kernel takes no more bytes after the first ones, for longer than a host may be silent."""
    options = {"token_file": token} if is_encrypted else {}
    with ranks.start(is_stopped_in_a_call, 3, str(tmp_path), options) as running:
        pids = [running.receive(rank) for rank in range(3)]
        until_stopped(pids[1])
        time.sleep(3.0)
        os.kill(pids[1], signal.SIGCONT)
        assert running.results() == [True] * 3


# --- Meeting ---


def meets_with(
    say: Callable[[Any], None], rank: int, size: int, folder: str, options: list[dict[str, Any]]
) -> str:
    given = options[rank]
    if variable := given.pop("variable", ""):
        os.environ["SOFTS_FAST_TOKEN_FILE"] = variable
    try:
        with connected(rank, size, folder, SOON_S, **given) as strategy:
            strategy.barrier()
            return "joined"
    except (ConfigError, PeerLost) as error:
        return f"{type(error).__name__}: {error}"


def test_ranks_with_one_token_meet(tmp_path: Path, token: str) -> None:
    assert ranks.run(meets_with, 3, str(tmp_path), [{"token_file": token}] * 3) == ["joined"] * 3


def test_ranks_with_different_tokens_are_told_so_at_once(tmp_path: Path, token: str) -> None:
    write_token(tmp_path / "other")
    options = [{"token_file": token}, {"token_file": token}, {"token_file": str(tmp_path / "other")}]
    for text in ranks.run(meets_with, 3, str(tmp_path), options):
        assert re.match(
            r"ConfigError: rank 0 \(process \d+ on .+\) and rank 2 \(process \d+ on .+\) have different tokens; give all",
            text,
        )


def test_ranks_meet_while_their_token_is_replaced(tmp_path: Path, token: str) -> None:
    old = tmp_path / "old"
    old.write_bytes(Path(token).read_bytes())
    old.chmod(0o600)
    rotate_token(Path(token))
    options = [{"token_file": token}, {"token_file": str(old)}]
    assert ranks.run(meets_with, 2, str(tmp_path), options) == ["joined"] * 2


def test_ranks_with_a_token_and_without_are_told_so(tmp_path: Path, token: str) -> None:
    for text in ranks.run(meets_with, 2, str(tmp_path), [{"token_file": token}, {}]):
        assert text.startswith("ConfigError: rank 0 has a token file, and rank 1 does not; give all ranks")


def test_the_variable_names_a_token_file_unless_the_network_is_trusted(tmp_path: Path, token: str) -> None:
    named = {"variable": token}
    assert ranks.run(meets_with, 2, str(tmp_path), [named, {"token_file": token}]) == ["joined"] * 2
    for text in ranks.run(meets_with, 2, str(tmp_path), [named, {**named, "plain": True}]):
        assert "rank 0 has a token file, and rank 1 does not" in text
    with pytest.raises(ConfigError, match="plain connections use no token file"):
        LinkStrategy(plain=True, token_file=token)


def test_other_machines_are_reached_with_a_token_file_or_by_a_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"without TLS; .*softs-fast keys new FILE.* plain=True"):
        LinkStrategy(host="192.0.2.1", timeout_s=0.1).init(0, 2, tmp_path)
    with pytest.raises(ConfigError, match=r"host .* is 0\.0\.0\.0; give an address"):
        LinkStrategy(host="0.0.0.0", plain=True, timeout_s=0.1).init(0, 2, tmp_path)


class Told:
    """A rendezvous in which rank 1 says what it is told to."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def exchange(self, message: bytes, timeout_s: float, /) -> list[bytes]:
        return [message, self._said]

    def close(self) -> None:
        pass


def meets_alone(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    """Rank 1 has neither a token nor the word, and is on the network."""
    with pytest.raises(ConfigError) as raised:
        LinkStrategy(host=None if rank == 0 else "192.0.2.1", timeout_s=NEVER_S).init(rank, size, folder)
    return str(raised.value)


def test_ranks_do_not_wait_for_one_that_cannot_listen(tmp_path: Path) -> None:
    told = ranks.run(meets_alone, 2, str(tmp_path))
    assert told[0] == f"rank 1 does not take part: {told[1]}"
    assert "softs-fast keys new" in told[1]


def meets_by_name(say: Callable[[Any], None], rank: int, size: int, folder: str) -> str:
    """Rank 0 looks up the name of its own host as loopback, as on many systems."""
    network = Address.parse("192.0.2.1:1", "any other host").own_side()
    link_engine._own_side = lambda store: "127.0.1.1" if rank == 0 else network  # type: ignore[assignment]
    with LinkStrategy(plain=True, timeout_s=20).init(rank, size, folder) as strategy:
        strategy.barrier()
        engine = strategy.engine
        assert isinstance(engine, LinkEngine)
        return engine.host


def test_a_rank_of_a_host_that_knows_itself_by_loopback_listens_where_others_reach_it(tmp_path: Path) -> None:
    try:
        network = Address.parse("192.0.2.1:1", "any other host").own_side()
    except ConfigError as error:
        pytest.skip(f"no way to other hosts: {error}")
    assert ranks.run(meets_by_name, 3, str(tmp_path)) == [network] * 3


def test_a_rank_that_others_do_not_reach_is_named() -> None:
    there = json.dumps(["tcp://192.0.2.1:5", "00" * 16, False, "process 1", []]).encode()
    with pytest.raises(
        ConfigError, match=r"rank 0 listens on loopback, and rank 1 does not; give each host="
    ):
        LinkStrategy().init(0, 2, Told(there))
    for strange in (b"", b"[]", b'["tcp://192.0.2.1:5", 3, false, ""]'):
        with pytest.raises(WireError, match="tells no endpoint"):
            LinkStrategy().init(0, 2, Told(strange))


def meets_in_a_store(say: Callable[[Any], None], rank: int, size: int, place: str) -> float:
    store = torch.distributed.FileStore(place, size)
    with LinkStrategy(name="of-a-file").init(rank, size, store) as strategy:
        tensor = torch.full((3,), float(rank + 1))
        strategy.all_reduce(tensor)
        return tensor.sum().item()


def test_ranks_meet_in_a_store_of_their_own(tmp_path: Path) -> None:
    assert ranks.run(meets_in_a_store, 3, str(tmp_path / "store")) == [18.0] * 3


def test_a_rank_that_does_not_come_to_the_store(tmp_path: Path) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(
        PeerLost, match='1 of 2 ranks came to the rendezvous of group "alone"; not there: rank 1'
    ):
        LinkStrategy(name="alone", timeout_s=0.2).init(0, 2, store)


def listens(say: Callable[[Any], None], rank: int, size: int) -> list[str]:
    ways = []

    def own_side(address: Address) -> str:
        ways.append(address.target())
        return "127.0.0.1"

    Address.own_side = own_side  # type: ignore[method-assign]
    store = torch.distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for place in (store, torch.distributed.PrefixStore("a", torch.distributed.PrefixStore("b", store))):
        LinkStrategy().init(0, 1, place).close()
    return [way.removesuffix(f":{store.port}") for way in ways]


def test_a_rank_listens_at_its_address_on_the_way_to_the_store() -> None:
    assert ranks.run(listens, 1) == [["127.0.0.1"] * 2]
