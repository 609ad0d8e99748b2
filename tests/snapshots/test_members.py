"""Members find each other by notes: without collective calls, without the dead, and with malformed notes refused."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import torch.distributed as dist
from waiting import eventually

from softs_fast.collectives.rendezvous import FolderStore
from softs_fast.errors import ConfigError
from softs_fast.identity import hosts, this_process
from softs_fast.snapshots import Members, SnapshotLayout, Window

LAYOUT = SnapshotLayout.of({"w": torch.zeros(3)})


@pytest.fixture(params=["folder", "file store", "hash store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "folder":
        yield tmp_path / "place"
    elif request.param == "file store":
        yield dist.FileStore(str(tmp_path / "store"), -1)
    else:
        yield dist.HashStore()


def ranks_of(members: Members) -> list[int]:
    return [member.rank for member in members.refresh()]


def test_members_come_and_go(place: Any) -> None:
    windows = [Window(LAYOUT) for _ in range(3)]
    first = Members(place, windows[0], rank=0)
    assert ranks_of(first) == []
    second = Members(place, windows[1], rank=1)
    third = Members(place, windows[2], rank=2)
    assert ranks_of(first) == [1, 2]
    assert ranks_of(third) == [0, 1]
    [one, two] = first.refresh()
    assert first.refresh() == [one, two], "windows are opened once"
    second.close()
    assert ranks_of(first) == [1, 2], "its window is still open"
    windows[1].close()
    assert ranks_of(first) == [2]
    with pytest.raises(ConfigError, match="is closed"):
        one.window.header()
    assert ranks_of(third) == [0]
    windows[1] = Window(LAYOUT)
    second = Members(place, windows[1], rank=1)
    assert ranks_of(first) == [1, 2]
    for members in (first, second, third):
        members.close()
        members.close()
    with Members(place, windows[0], rank=5) as late:
        assert ranks_of(late) == []
    for window in windows:
        window.close()


def test_a_folder_is_read_again_only_after_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    get = FolderStore.get
    monkeypatch.setattr(FolderStore, "get", lambda self, key: reads.append(key) or get(self, key))

    def n_reads() -> int:
        reads.clear()
        first.refresh()
        return len(reads)

    with Window(LAYOUT) as mine, Window(LAYOUT) as other, Members(tmp_path, mine, rank=0) as first:
        # Until some time has passed, another note may have been added at the same tick of the clock. It has not yet.
        ahead_ns = time.time_ns() + 10**11
        os.utime(tmp_path, ns=(ahead_ns, ahead_ns))
        assert [n_reads() for _ in range(2)] == [1, 1]
        ended_ns = time.time_ns() - 10**9
        os.utime(tmp_path, ns=(ended_ns, ended_ns))
        assert [n_reads() for _ in range(3)] == [1, 0, 0]
        with Members(tmp_path, other, rank=1):
            assert ranks_of(first) == [1]
        other.close()
        assert ranks_of(first) == []


def test_groups_at_one_place_are_apart(place: Any) -> None:
    with (
        Window(LAYOUT) as mine,
        Window(LAYOUT) as other,
        Members(place, mine, rank=0, name="a") as a,
        Members(place, other, rank=1, name="b") as b,
    ):
        assert ranks_of(a) == ranks_of(b) == []


@pytest.mark.parametrize("where", ["here", "another namespace", "masked"])
def test_ranks_that_live_where_their_memory_cannot_be_opened_are_told(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = dist.HashStore()
    with Window(LAYOUT) as mine, Window(LAYOUT) as other, Members(place, mine, rank=0) as members:
        here = this_process()
        if where == "masked":
            monkeypatch.setattr(hosts, "boot_id", lambda: "")
        elif where != "here":
            monkeypatch.setattr(hosts, "this_process", lambda: here._replace(namespace=here.namespace + 1))
        # No process has this number here.
        monkeypatch.setattr(Window, "address", {**other.address, "pid": (1 << 31) - 1})
        Members(place, other, rank=1)
        monkeypatch.undo()
        assert [ranks_of(members) for _ in range(2)] == [[], []]
        assert list(members.unseen) == ([] if where == "here" else [1]), "the dead are not missed"
    told = [text for text in caplog.messages if text.startswith("rank 1 is left out, as its memory")]
    assert len(told) == (where != "here")


def stays(say: Callable[[Any], None], rank: int, size: int, place: str) -> None:
    with Window(LAYOUT) as window:
        window.publish({"w": torch.full((3,), float(rank))}, step=rank, metric=None, trained=1)
        with Members(place, window, rank=rank):
            say(os.getpid())
            time.sleep(600)


def test_the_dead_are_left_out_and_their_notes_removed(tmp_path: Path) -> None:
    with ranks.start(stays, 3, str(tmp_path / "place")) as running:
        pids = running.results()
        with Window(LAYOUT) as window, Members(tmp_path / "place", window, rank=9) as members:
            assert [member.window.header().step for member in members.refresh()] == [0, 1, 2]
            os.kill(pids[1], signal.SIGKILL)
            running.processes[1].join()
            assert ranks_of(members) == [0, 2]
            assert len(list((tmp_path / "place").iterdir())) == 3
            os.kill(pids[0], signal.SIGSTOP)
            assert ranks_of(members) == [0, 2], "one that is stopped is a member"
    with Window(LAYOUT) as window, Members(tmp_path / "place", window, rank=9) as members:
        assert ranks_of(members) == []
        assert len(list((tmp_path / "place").iterdir())) == 1
    assert list((tmp_path / "place").iterdir()) == []


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"[" * 4000,
        b"{}",
        b"\xff",
        b"[1, 2]",
        b'{"rank": "0", "window": {}}',
        b'{"rank": 0, "window": []}',
        b'{"rank": 0, "window": {}}',
        b'{"rank": 0, "window": {"pid": 1, "started": 1, "fd": 1, "id": "00", "n_bytes": 1}}',
        b'{"rank": 0, "window": {"pid": 1, "started": 1, "fd": 1, "id": "%s", "n_bytes": 99999}}'
        % (b"0" * 32),
    ],
)
def test_notes_that_are_malformed_are_refused(tmp_path: Path, note: bytes) -> None:
    with Window(LAYOUT) as window, Window(LAYOUT) as other, Members(tmp_path, window, rank=0) as members:
        process = next(tmp_path.iterdir()).read_bytes().partition(b"\n")[0]
        (tmp_path / "softs.ranks.window.bad").write_bytes(process + b"\n" + note)
        (tmp_path / "softs.ranks.window.worse").write_bytes(note)
        with Members(tmp_path, other, rank=1):
            assert ranks_of(members) == [1]
            assert list(members.refused) == ["softs.ranks.window.bad"]
            assert not (tmp_path / "softs.ranks.window.worse").exists(), "it has no author that lives"


def test_a_note_that_is_not_written_yet_is_looked_at_again() -> None:
    store = dist.HashStore()
    with Window(LAYOUT) as window, Window(LAYOUT) as other, Members(store, window, rank=0) as members:
        assert store.add("softs.ranks.window.count", 1) == 2
        assert ranks_of(members) == []
        note = json.dumps({"rank": 1, "window": other.address}).encode()
        store.set("softs.ranks.window.2", note.hex())
        assert ranks_of(members) == [1]


class Unreliable(dist.HashStore):
    """A store that can fail as one with a server does."""

    fails = False

    def add(self, *args: Any) -> int:
        if self.fails:
            raise dist.DistNetworkError("connection was likely closed")
        count: int = super().add(*args)
        return count


def test_a_place_that_cannot_be_reached_keeps_the_known(caplog: pytest.LogCaptureFixture) -> None:
    store = Unreliable()
    with (
        Window(LAYOUT) as window,
        Window(LAYOUT) as other,
        Members(store, window, rank=0) as members,
        Members(store, other, rank=1),
    ):
        assert ranks_of(members) == [1]
        store.fails = True
        assert ranks_of(members) == [1]
        assert "cannot look for members: connection was likely closed" in caplog.text


class Stopped(dist.HashStore):
    """A store with a server that is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def add(self, *args: Any) -> int:
        assert self.answers.wait(30)
        count: int = super().add(*args)
        return count


def test_no_call_waits_for_a_store_that_is_asked_beside() -> None:
    """Neither the join nor a look: a call that waited would never end here."""
    store = Stopped()
    with (
        Window(LAYOUT) as window,
        Window(LAYOUT) as other,
        Members(store, window, rank=0, beside=True) as members,
        Members(store, other, rank=1, beside=True) as others,
    ):
        assert [ranks_of(members), ranks_of(others)] == [[], []]
        store.answers.set()
        eventually(lambda: ranks_of(members) == [1] and ranks_of(others) == [0], "both are known")
        store.answers.clear()
        assert [ranks_of(members) for _ in range(3)] == [[1]] * 3
        other.close()
        assert ranks_of(members) == [], "for that no store is asked"
        store.answers.set()


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with Window(LAYOUT) as window:
        with pytest.raises(ConfigError, match="group name"):
            Members(tmp_path, window, rank=0, name="a/b")
        with pytest.raises(ConfigError, match="members meet at a int"):
            Members(3, window, rank=0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the window is closed"):
        Members(tmp_path, window, rank=0)
    assert list(tmp_path.iterdir()) == []
