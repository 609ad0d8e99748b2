"""Recordings at URLs of fsspec: the same samples, few copies at a time, and stores that fail."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recordings import append, equal, plain, record, shard_writer

from softs_fast import ConfigError, DamagedError
from softs_fast.record import Recording, folder, recording
from softs_fast.record.folder import Folder

fsspec = pytest.importorskip("fsspec")
SHARD = "shard-000001.safetensors"


@pytest.fixture
def memory() -> Iterator[Callable[[Path], str]]:
    """Copies a folder into the memory of fsspec, and returns its URL there."""
    store = fsspec.filesystem("memory")

    def copy(source: Path) -> str:
        for path in source.rglob("*"):
            if path.is_file():
                store.pipe_file(f"/epoch/{path.relative_to(source)}", path.read_bytes())
        return "memory://epoch"

    yield copy
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts at a store follow each other at once."""
    monkeypatch.setattr(folder, "_PAUSES_S", (0.0, 0.0))


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_the_samples_of_all_ranks_and_of_open_shards(
    tmp_path: Path, memory: Callable[[Path], str], kind: str
) -> None:
    for rank in (0, 1):
        record(tmp_path / "ranks", range(rank, 100, 2), rank=rank, world_size=2, shard_bytes=300)
    (tmp_path / "one").mkdir()
    writer = shard_writer(tmp_path / "one")
    append(writer, range(20))
    writer.abandon()
    for source, n in ((tmp_path / "ranks", 100), (tmp_path / "one", 20)):
        url = memory(source) if kind == "memory" else f"file://{source}"
        with pickle.loads(pickle.dumps(Recording(url, verify=True))) as found:
            assert found.span == range(n)
            assert equal(found.batch(range(n)), plain(range(n)))
            assert found.origin(3)["file"].startswith(f"{url}/")
        fsspec.filesystem("memory").store.clear()


def test_copies_are_few_and_each_is_made_once_in_order(
    tmp_path: Path, memory: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, range(300))
    fetched: list[str] = []
    fetch = Folder._fetched

    def noted(self: Folder, name: str, n_bytes: int | None) -> int:
        # Room is made before.
        assert sum(one.n_bytes for one in found._files.values()) + (n_bytes or 0) <= most
        fetched.append(name)
        return fetch(self, name, n_bytes)

    most = int(2.5 * os.path.getsize(tmp_path / SHARD))
    with Recording(memory(tmp_path), cache_bytes=most) as found:
        monkeypatch.setattr(Folder, "_fetched", noted)
        for i in range(0, 300, 10):
            assert equal(found.batch(range(i, i + 10)), plain(range(i, i + 10)))
        assert len(fetched) == len(set(fetched)) == 9
        found.batch(range(280, 300))
        assert len(fetched) == 9, "the shards that were used last are there"
        found.batch([0])
        assert len(fetched) == 10
    most, fetched[:] = 4 << 30, []
    monkeypatch.setattr(recording, "_MOST_OPEN", 2)
    with Recording(memory(tmp_path)) as found:
        for _ in range(2):
            found.batch(range(300))
        assert len(fetched) == len(set(fetched)), "nothing but the bytes of copies bounds them"
    with pytest.raises(ConfigError, match="cache_bytes must be a whole number and at least 1, got 0"):
        Recording(tmp_path, cache_bytes=0)


@pytest.mark.parametrize("n_failures", [2, 3])
@pytest.mark.parametrize("fails", ["at once", "in the midst"])
def test_a_store_that_fails_is_asked_again_and_then_named(
    tmp_path: Path,
    memory: Callable[[Path], str],
    monkeypatch: pytest.MonkeyPatch,
    n_failures: int,
    fails: str,
) -> None:
    record(tmp_path, range(100))
    store = type(fsspec.filesystem("memory"))
    opened, left = store.open, n_failures

    def flaky(self: Any, path: str, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        file = opened(self, path, *arguments, **options)
        if SHARD in path and left:
            left -= 1
            if fails == "at once":
                raise RuntimeError("connection reset")
            file.seek(100)
        return file

    with Recording(memory(tmp_path)) as found:
        monkeypatch.setattr(store, "open", flaky)
        if n_failures == 3:
            cause = (
                "connection reset" if fails == "at once" else r"the store ended after [\d,]+ of [\d,]+ bytes"
            )
            with pytest.raises(OSError, match=rf"cannot read memory://epoch/{SHARD} in 3 attempts: {cause}"):
                found.batch(range(100))
        # The next call asks anew.
        assert equal(found.batch(range(100)), plain(range(100)))


def test_damage_in_a_store_is_named_without_being_asked_for(
    tmp_path: Path, memory: Callable[[Path], str]
) -> None:
    record(tmp_path, range(100))
    url, store = memory(tmp_path), fsspec.filesystem("memory")
    whole = store.cat_file(f"/epoch/{SHARD}")
    with Recording(url) as found:
        store.pipe_file(f"/epoch/{SHARD}", whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(DamagedError, match=f'tensor "x" of memory://epoch/{SHARD} was altered'):
            found.batch([40])
        store.pipe_file(f"/epoch/{SHARD}", whole + b"0")
        with pytest.raises(DamagedError, match=rf"{SHARD} is too long: expected at most [\d,]+ bytes"):
            found.batch([40])
        store.rm_file(f"/epoch/{SHARD}")
        with pytest.raises(DamagedError, match=f"memory://epoch/{SHARD} is missing"):
            found.batch([40])
    with pytest.raises(DamagedError, match=rf"memory://epoch lacks shards of its stream.json: {SHARD}"):
        Recording(url)
    store.rm_file("/epoch/stream.json")
    with pytest.raises(DamagedError, match=r"has shards of a recording, but its stream.json is missing"):
        Recording(url)
    with pytest.raises(ConfigError, match=r"memory://none is not a recording: it has no stream.json"):
        Recording("memory://none")


def test_urls_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"invalid URL 'nothing://a': .*nothing.*; give a folder or a URL"):
        Recording("nothing://a")
    for url in ("http://host/epoch", "simplecache::ftp://host/epoch"):
        with pytest.raises(ConfigError, match="can be read and changed on the way; use https://"):
            Recording(url)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        ConfigError, match=r"memory://a needs a package .* pip install 'softs-fast\[record\]'"
    ):
        Recording("memory://a")
