"""How ranks meet: every kind of place, what earlier meetings left, and processes that do not belong."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from waiting import free_ports

from softs_fast import __version__, _kernels
from softs_fast.collectives import LinkStrategy, Schedule, ShmStrategy
from softs_fast.collectives.rendezvous import FolderStore, StoreRendezvous, TorchStore, as_rendezvous
from softs_fast.errors import ConfigError, PeerLost

SCHEDULE = Schedule(1 << 15, 1 << 16)


def meets(say: Callable[[Any], None], rank: int, size: int, folder: str, kind: str, port: int) -> None:
    place: Any = folder
    if kind == "tcp":
        place = f"tcp://127.0.0.1:{port}"
    elif kind == "store":
        place = dist.FileStore(f"{folder}/store", size)
    elif kind == "group":
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
        place = dist.group.WORLD
    for _ in range(3):  # at the same place, under the same name, again and again
        if kind == "tcp" and _:
            break
        with ShmStrategy(timeout_s=20, schedule=SCHEDULE).init(rank, size, place) as strategy:
            tensor = torch.ones(3)
            strategy.all_reduce(tensor)
            assert tensor.tolist() == [size] * 3
            strategy.barrier()
    if kind == "group":
        dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["folder", "tcp", "store", "group"])
def test_every_kind_of_place(tmp_path: Path, kind: str) -> None:
    [port] = free_ports()
    ranks.run(meets, 3, str(tmp_path), kind, port)
    if kind == "folder":
        assert list(tmp_path.iterdir()) == []


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    with pytest.raises(PeerLost, match=r"1 of 4 ranks came .* not there: rank 0, 2, 3"):
        ShmStrategy(timeout_s=0.1).init(1, 4, tmp_path)


def test_notes_of_processes_that_have_ended_do_not_count(tmp_path: Path) -> None:
    namespace = _kernels.this_process()[2]
    (tmp_path / "softs.g.hello.1").write_bytes(b"1 12345 %d\nended" % namespace)
    (tmp_path / "softs.g.hello.0").write_bytes(b"nonsense")
    place = StoreRendezvous(FolderStore(tmp_path), 0, 2, "g")
    with pytest.raises(PeerLost, match="not there: rank 1"):
        place.exchange(b"", 0.1)


class SharedRank(FolderStore):
    """A folder in which another process of the same rank is a little later."""

    def set(self, key: str, value: bytes) -> None:
        super().set(key, value)
        if key.endswith("hello.1"):
            super().set(key, b"of another one")


def test_two_processes_of_one_rank_do_not_both_join(tmp_path: Path) -> None:
    FolderStore(tmp_path).set("softs.g.hello.0", b"the first rank's")
    place = StoreRendezvous(SharedRank(tmp_path), 1, 2, "g")
    with pytest.raises(ConfigError, match='another process joins group "g" as rank 1 too'):
        place.exchange(b"", 20.0)


def test_the_first_decision_counts_even_if_its_author_has_ended(tmp_path: Path) -> None:
    folder = FolderStore(tmp_path)
    assert folder.decided("d") is None
    namespace = _kernels.this_process()[2]
    (tmp_path / "d").write_bytes(b"1 12345 %d\nfirst" % namespace)
    assert folder.get("d") is None
    stores = [folder, TorchStore(dist.HashStore())]
    stores[1].decide("d", b"first")
    for store in stores:
        store.decide("d", b"second")
        assert store.decided("d") == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def talk(folder: Path, change: dict[str, Any]) -> str:
    """Join as rank 1 a group of which rank 0 reports something false about itself; returns the error."""
    segment = _kernels.Segment.create_group(2, 1 << 16)
    pid, started, _ = _kernels.this_process()
    card = {
        "version": __version__,
        "size": 2,
        "staging_bytes": 1 << 16,
        "pid": pid,
        "started": started,
        "offer": segment.offer().hex(),
    }
    said = json.dumps(card | change).encode()

    def other() -> None:
        place = StoreRendezvous(FolderStore(folder), 0, 2, "shm")
        place.exchange(said, 20.0)
        place.exchange(b"", 20.0)

    thread = threading.Thread(target=other)
    thread.start()
    try:
        with pytest.raises((ConfigError, PeerLost)) as raised:
            ShmStrategy(timeout_s=20, staging_bytes=1 << 16, schedule=SCHEDULE).init(1, 2, folder)
    finally:
        thread.join()
    return str(raised.value)


def test_a_rank_of_another_host_is_refused(tmp_path: Path) -> None:
    # There the same process number means another process; what that has open is not what was offered.
    here = _kernels.Segment.create_group(2, 1 << 16)
    offer = bytearray(here.offer())
    offer[-1] ^= 1
    text = talk(tmp_path, {"offer": offer.hex()})
    assert "rank 1: cannot open shared memory" in text
    assert "it is other memory" in text


def test_what_ranks_say_of_themselves_is_checked(tmp_path: Path) -> None:
    for change, text in (
        ({"size": 3}, "size differs: 3 on rank 0; 2 on rank 1"),
        ({"staging_bytes": 1 << 17}, "staging_bytes differs"),
        ({"version": "0.0.9"}, f"version of softs-fast differs: 0.0.9 on rank 0; {__version__} on rank 1"),
        ({"version": "0.0.9", "pid": "x"}, "version of softs-fast differs"),
        ({"host": "elsewhere", "offer": ""}, "2 ranks (elsewhere on rank 0; "),
        ({"pid": -1}, "rank 0 sent a malformed description of itself"),
        ({"started": "x"}, "rank 0 sent a malformed description of itself"),
        ({"offer": "zz"}, "rank 0 sent a malformed description of itself"),
        ({"offer": "00"}, "malformed"),
        ({"offer": ""}, "cannot form a group"),
    ):
        assert text in talk(tmp_path, change)


def test_arguments_are_checked(tmp_path: Path) -> None:
    for wrong in (
        lambda: ShmStrategy(timeout_s=0),
        lambda: ShmStrategy(staging_bytes=1000),
        lambda: ShmStrategy(staging_bytes=1 << 40),
        lambda: ShmStrategy(name="../elsewhere").init(0, 1, tmp_path),
        lambda: ShmStrategy().init(2, 2, tmp_path),
        lambda: ShmStrategy().init(0, 65, tmp_path),
        lambda: ShmStrategy().init(0, 1, 3.5),
        lambda: ShmStrategy().init(0, 1, "tcp://nowhere"),
        lambda: ShmStrategy().barrier(),
        lambda: LinkStrategy().barrier(),
    ):
        with pytest.raises(ConfigError):
            wrong()
    with ShmStrategy(schedule=SCHEDULE).init(0, 1, tmp_path) as strategy:
        for wrong in (
            lambda: strategy.init(0, 1, tmp_path),
            lambda: strategy.all_reduce(torch.zeros(2, dtype=torch.complex64)),
            lambda: strategy.all_reduce(torch.zeros(2), "product"),
            lambda: strategy.all_reduce(torch.zeros(2).to_sparse()),
            lambda: strategy.all_reduce(torch.zeros(2, dtype=torch.bool), "mean"),
            lambda: strategy.broadcast_tensor(torch.zeros(2), 1),
            lambda: strategy.all_gather(torch.zeros(3), torch.zeros(2)),
            lambda: strategy.all_gather(torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
            lambda: strategy.reduce_scatter(torch.zeros(1), torch.zeros(2)),
            lambda: strategy.reduce_scatter_slices(torch.zeros(2), torch.zeros(2), [0, 1]),
        ):
            with pytest.raises(ConfigError):
                wrong()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="another user"):
        as_rendezvous(tmp_path, 0, 1, name="g", timeout_s=1.0)
