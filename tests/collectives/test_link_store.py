"""Stores between ranks that check a token: those of torch are the model, and what ends or lies is named."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from backend_ranks import pretend_hosts
from fork_check import check_fork
from scripts import run_script
from token_files import credentials, token_file
from torch.distributed import PrefixStore, Store
from waiting import WATCHDOG_S, eventually, free_ports

from softs_fast.collectives import (
    HierarchicalStrategy,
    LinkStore,
    LinkStrategy,
    ShmStrategy,
    StoreServer,
    link_store,
)
from softs_fast.collectives.backend import register
from softs_fast.errors import ConfigError, EndpointInUse, PeerLost

SHOWN = credentials("a")
#: A call that has no answer.
SHORT = timedelta(seconds=0.05)


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with closing(StoreServer("127.0.0.1", credentials=SHOWN)) as server:
        yield server


def connected(server: StoreServer) -> LinkStore:
    return LinkStore(*server.address, credentials=SHOWN, timeout_s=WATCHDOG_S)


def calls(say: Callable[[Any], None], rank: int, size: int, kind: str) -> None:
    # torch keeps no reference to ours, and of its own one leaves a pipe behind: in a process of its own.
    server = StoreServer("127.0.0.1", credentials=SHOWN)
    own = connected(server)
    store: Store = own
    if kind == "tcp":
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    elif kind == "link behind a prefix":
        store = PrefixStore("prefix", own)
    before = store.num_keys()
    store.set("text", "abc")
    store.set("bytes", b"\x00\xff" * 1000)
    assert (store.get("text"), store.get("bytes")) == (b"abc", b"\x00\xff" * 1000)
    assert (store.add("number", 5), store.add("number", -7)) == (5, -2)
    assert store.get("number") == b"-2"
    assert store.compare_set("new", "", "first") == b"first"
    assert store.compare_set("new", "other", "second") == b"first"
    assert store.compare_set("new", "first", "second") == b"second"
    assert store.compare_set("none", "other", "second") == b"other"
    assert store.num_keys() == before + 4
    assert store.check(["text", "new"])
    assert not store.check(["text", "none"])
    store.wait(["text", "new", "number"])
    # Behind a prefix torch makes a negative one of it, which is none.
    store.wait(["text"], timedelta.max)
    with pytest.raises(TypeError):
        store.set("new", 5)  # type: ignore[arg-type]
    assert store.delete_key("text")
    assert not store.delete_key("text")
    assert not store.check(["text"])
    for call in (lambda: store.wait(["text"], SHORT), lambda: store.wait(["new", "none"], SHORT)):
        with pytest.raises((dist.DistStoreError, PeerLost)):
            call()


@pytest.mark.parametrize("kind", ["tcp", "link", "link behind a prefix"])
def test_calls_are_those_of_stores_of_torch(kind: str) -> None:
    ranks.run(calls, 1, kind)


def test_get_and_wait_end_with_the_value_and_hold_up_no_other_call(server: StoreServer) -> None:
    store, found = connected(server), []
    threads = [
        threading.Thread(target=lambda: found.append(store.get("late"))),
        threading.Thread(target=lambda: found.append(store.wait(["late", "later"]))),
    ]
    for thread in threads:
        thread.start()
    store.set("late", "value")
    eventually(lambda: found)
    assert found == [b"value"]
    PrefixStore("", store).clone().set("/later", "")
    store.set("later", "")
    for thread in threads:
        thread.join()
    assert found == [b"value", None]
    assert store.num_keys() == 3


def test_what_a_store_does_not_take_is_refused_and_loses_nothing(server: StoreServer) -> None:
    store = connected(server)
    store.set("text", "abc")
    for call, why in (
        (lambda: store.add("text", 1), "the value of this key is no number"),
        (lambda: store.set("k" * 5000, ""), "a key has 5000 bytes"),
        (lambda: store.set("k", bytes(1 << 20) + b"x"), "the value of 'k' has 1048577 bytes"),
    ):
        with pytest.raises(ConfigError, match=why):
            call()
    for number in range(255):
        store.set(f"{number}", bytes(1 << 20))
    with pytest.raises(ConfigError, match="the store is full: it holds 268435456 bytes at most"):
        store.set("255", bytes(1 << 20))
    assert store.get("text") == b"abc"
    assert store.num_keys() == 256


def test_a_time_that_is_over_names_keys_and_store(server: StoreServer) -> None:
    store = connected(server)
    store.set_timeout(SHORT)
    with pytest.raises(
        PeerLost, match=r"127\.0\.0\.1:\d+ has had nothing for 'one' for 0\.1 s: a rank has not"
    ):
        store.get("one")
    for timeout in (timedelta(seconds=0.02), timedelta(0)):
        with pytest.raises(PeerLost, match=r"nothing for 'one', 'two' for 0\.0 s"):
            connected(server).wait(["one", "two"], timeout)
    PrefixStore("", PrefixStore("", store)).set_timeout(timedelta(seconds=WATCHDOG_S))
    assert store.timeout == timedelta(seconds=WATCHDOG_S)
    store.set("one", "")
    assert store.get("one") == b""


def test_ends_with_other_tokens_are_refused_at_once(server: StoreServer) -> None:
    for shown in (credentials("b"), None):
        with pytest.raises(PeerLost, match=r"no store at tcp://127.0.0.1|lost the connection"):
            LinkStore(*server.address, credentials=shown, timeout_s=600.0).set("key", "")
    with closing(StoreServer("127.0.0.1")) as plain:
        LinkStore(*plain.address).set("key", "")
        with pytest.raises(PeerLost, match="it speaks no TLS; give it the token file"):
            LinkStore(*plain.address, credentials=SHOWN, timeout_s=600.0)
    for make in (lambda: LinkStore("192.0.2.1", 29402), lambda: StoreServer("0.0.0.0")):
        with pytest.raises(
            ConfigError, match=r"as softs://HOST\?token_file=FILE or in SOFTS_FAST_TOKEN_FILE"
        ):
            make()


def test_a_server_listens_at_its_address_alone(server: StoreServer) -> None:
    port = f":{server.address[1]:04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    lines += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()]
    assert [line[1] for line in lines if line[3] == "0A" and line[1].endswith(port)] == [f"0100007F{port}"]
    with pytest.raises(EndpointInUse):
        StoreServer(*server.address, credentials=SHOWN)
    with pytest.raises(ConfigError, match=r"cannot listen at 192\.0\.2\.1 for ranks: .*cannot assign"):
        StoreServer("192.0.2.1", credentials=SHOWN)
    server.close()
    server.close()


def test_a_fork_uses_no_store_of_its_parent(server: StoreServer) -> None:
    store = connected(server)
    check_fork(
        lambda: store.set("key", ""),
        match="this store was opened by process",
        then=server.close,
    )
    store.set("key", "")


def serves(say: Callable[[Any], None], rank: int, size: int, port: int) -> None:
    """Rank 0 serves the store until it is killed; the other one waits for a key."""
    address = ("127.0.0.1", port)
    kept = StoreServer(*address, credentials=SHOWN) if rank == 0 else None
    store = LinkStore(*address, credentials=SHOWN, timeout_s=WATCHDOG_S)
    say(os.getpid())
    try:
        store.get("never")
    except PeerLost as error:
        say(str(error))
    del kept


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_process_that_serves_ends_all_calls(number: signal.Signals) -> None:
    [port] = free_ports()
    with ranks.start(serves, 2, port) as running:
        pid, _ = running.receive(0), running.receive(1)
        os.kill(pid, number)
        assert "lost the connection to tcp://127.0.0.1" in running.receive(1)


def groups(say: Callable[[Any], None], rank: int, size: int, place: str, backend: str) -> list[float]:
    """Make one group after another at one place."""
    register()
    found = []
    for number in range(3):
        dist.init_process_group(
            backend, init_method=place, rank=rank, world_size=size, timeout=timedelta(seconds=WATCHDOG_S)
        )
        tensor = torch.full((3,), float(number + rank))
        dist.all_reduce(tensor)
        found.append(tensor[0].item())
        told: list[Any] = [None] * size
        dist.all_gather_object(told, rank)
        assert told == list(range(size))
        subset = dist.new_group([0, 1])
        dist.barrier()
        if rank < 2:
            dist.barrier(group=subset)
        dist.destroy_process_group()
    return found


@pytest.mark.parametrize("backend", ["gloo", "softs"])
def test_groups_of_torch_meet_at_a_place(tmp_path: Path, backend: str) -> None:
    token, [port] = token_file(tmp_path / "token", "a"), free_ports()
    place = f"softs://127.0.0.1:{port}/job?token_file={token}"
    assert ranks.run(groups, 3, place, backend) == [[3.0, 6.0, 9.0]] * 3


def on_two_hosts(say: Callable[[Any], None], rank: int, size: int, place: str) -> float:
    pretend_hosts([1, 1])
    dist.init_process_group("softs", init_method=place, rank=rank, world_size=size)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return tensor.item()


def test_the_token_file_of_a_place_is_enough_for_hosts(tmp_path: Path) -> None:
    token, [port] = token_file(tmp_path / "token", "a"), free_ports()
    assert ranks.run(on_two_hosts, 2, f"softs://127.0.0.1:{port}?token_file={token}") == [2.0] * 2


OF_TORCHRUN = """
import torch.distributed as dist, softs_fast.collectives
dist.init_process_group("softs", init_method="softs://")
print(dist.get_world_size())
dist.barrier()
dist.destroy_process_group()
"""


def test_rank_and_number_of_ranks_are_those_of_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(OF_TORCHRUN)
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": f"127.0.0.1:{free_ports()[0]}"}
    done = run_script(script, os.environ | place)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def met(place: str, rank: int, size: int, timeout_s: float = WATCHDOG_S) -> None:
    """Meet as a rank, and find all others."""
    store, *numbers = next(dist.rendezvous(place, rank, size, timeout=timedelta(seconds=timeout_s)))
    assert numbers == [rank, size]
    store.set(f"{rank}", "")
    store.wait([f"{other}" for other in range(size)])
    # The store ends with the process of rank 0.
    store.set(f"{rank} has found all", "")
    if rank == 0:
        store.wait([f"{other} has found all" for other in range(size)])


def sizes(say: Callable[[Any], None], rank: int, size: int, place: str) -> None:
    for number in (3, 2, 3, 1, 3):
        if rank < number:
            met(place, rank, number)


def test_groups_of_other_sizes_meet_in_between() -> None:
    ranks.run(sizes, 3, f"softs://127.0.0.1:{free_ports()[0]}")


def gives_up(say: Callable[[Any], None], rank: int, size: int, port: int) -> None:
    place = f"softs://127.0.0.1:{port}"
    with pytest.raises(
        PeerLost, match=r"nothing for 'softs.group/1, rank 1' for 0\.1 s: a rank has not come"
    ):
        met(place, 0, 3, SHORT.total_seconds())
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(met, place, 0, 3)]
        with pytest.raises(PeerLost, match=r"nothing for 'softs.group/2, all'|'softs.open/3'"):
            met(place, 1, 3, 0.5)
        done += [pool.submit(met, place, other, 3) for other in (1, 2)]
        for one in done:
            one.result()


def test_a_rank_that_gave_up_may_come_again() -> None:
    ranks.run(gives_up, 1, free_ports()[0])


def says_what_is_missing(say: Callable[[Any], None], rank: int, size: int, port: int) -> None:
    link_store._TELL_S = 0.01
    said = StringIO()
    link_store.logger.addHandler(logging.StreamHandler(said))
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(met, f"softs://127.0.0.1:{port}", 1, 3)]
        eventually(
            lambda: f"rank 1 waits for rank 0 to serve the store at 127.0.0.1:{port}" in said.getvalue()
        )
        done += [pool.submit(met, f"softs://127.0.0.1:{port}", 0, 3)]
        eventually(lambda: f"rank 0 waits at 127.0.0.1:{port} for " in said.getvalue())
        eventually(lambda: "rank 1 waits for other ranks; rank 0 says which" in said.getvalue())
        done += [pool.submit(met, f"softs://127.0.0.1:{port}", 2, 3)]
        for one in done:
            one.result()
    assert re.search(r" (2 of 3 ranks: 1, 2|1 of 3 ranks: 2); one that has no token", said.getvalue())


def test_ranks_say_what_they_wait_for() -> None:
    ranks.run(says_what_is_missing, 1, free_ports()[0])


def one_server(say: Callable[[Any], None], rank: int, size: int, port: int) -> None:
    os.environ["MASTER_ADDR"] = f"127.0.0.1:{port}"
    for place in ("softs://", f"softs://127.0.0.1:{port}/one", f"softs://127.0.0.1:{port}/two"):
        met(place, rank, size)


def test_places_of_one_host_and_port_have_one_server() -> None:
    ranks.run(one_server, 2, free_ports()[0])


def test_the_host_of_torchrun_may_be_an_address_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "::1")
    with pytest.raises(PeerLost, match=r"no store at tcp://\[::1\]:29402"):
        met("softs://", 1, 2, SHORT.total_seconds())


def strategies(
    say: Callable[[Any], None], rank: int, size: int, place: str, token: str, inside: bool
) -> float:
    # One rank names the file in the place, the other beside it.
    link = LinkStrategy(timeout_s=WATCHDOG_S, token_file=token if rank else None)
    if rank == 0:
        place += f"?token_file={token}"
    strategy = HierarchicalStrategy(ShmStrategy(timeout_s=WATCHDOG_S), link) if inside else link
    with closing(strategy.init(rank, size, place)):
        tensor = torch.ones(1)
        strategy.all_reduce(tensor)
        return tensor.item()


@pytest.mark.parametrize("inside", [False, True])
def test_strategies_take_the_token_of_the_place_or_beside_it(tmp_path: Path, inside: bool) -> None:
    token, [port] = token_file(tmp_path / "token", "a"), free_ports()
    assert ranks.run(strategies, 2, f"softs://127.0.0.1:{port}", str(token), inside) == [2.0] * 2


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("softs://127.0.0.1:9/job?rank=0", "world_size of a group at softs://127.0.0.1:9/job is missing"),
        ("softs://127.0.0.1:9?rank=x&world_size=2", "rank of a group at softs://127.0.0.1:9 is 'x'"),
        (
            "softs://a:1,b:2?rank=0&world_size=2",
            "expected one host, got a:1 and b:2; rank 0 serves the store",
        ),
        ("softs://127.0.0.1:9?rank=2&world_size=2", "rank of a group of 2 at softs://127.0.0.1:9 is 2"),
        ("softs://?rank=0&world_size=2", "has no host, and MASTER_ADDR is not set"),
        ("softs://127.0.0.1:9?token=abc&rank=0&world_size=2", "unknown parameter 'token'"),
    ],
)
def test_places_that_torch_cannot_use_are_refused(
    url: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=why.replace("?", r"\?")):
        next(dist.rendezvous(url))
