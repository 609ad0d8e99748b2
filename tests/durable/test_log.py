"""The log: what was appended is there again; only what a crash can leave is dropped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from softs_fast.durable import Lock, Log
from softs_fast.errors import ConfigError, DamagedError, SoftsError

RECORDS = [b"booted", b"table-1" * 5, b"", b"table-2" * 7]
#: Many sectors, none of zeros, so that every bit of it is vouched for.
LONG = bytes(range(1, 256)) * 8


def opened(path: Path, kind: str = "test") -> Log:
    return Log(path, kind, most_bytes=1 << 20, what="log")


def written(path: Path, records: Sequence[bytes] = RECORDS) -> bytes:
    log = opened(path)
    for record in records:
        log.append(record)
    log.close()
    return path.read_bytes()


def found(path: Path) -> list[bytes]:
    log = opened(path)
    log.close()
    return log.records


def test_records_are_there_again_in_the_documented_form(tmp_path: Path) -> None:
    data = written(tmp_path / "log", [b"body"])
    assert data.hex() == (
        b"softs-fast log 1 test\n".hex() + "04000000" + "b20ba8db" + "408533e1" + b"body".hex()
    )
    assert found(tmp_path / "log") == [b"body"]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_a_log_cut_anywhere_has_the_whole_records_before(tmp_path: Path) -> None:
    path = tmp_path / "log"
    ends = [len(written(tmp_path / f"{n}", RECORDS[:n])) for n in range(len(RECORDS) + 1)]
    data = written(path)
    for length in range(len(data) + 1):
        path.write_bytes(data[:length])
        whole = [record for record, end in zip(RECORDS, ends[1:], strict=True) if end <= length]
        log = opened(path)
        assert log.records == whole
        assert log.dropped == length - (ends[len(whole)] if length >= ends[0] else 0)
        log.append(b"more")
        log.close()
        assert found(path) == [*whole, b"more"]


@pytest.mark.parametrize("records", [RECORDS, [b"x", LONG]], ids=["short", "long"])
def test_every_flipped_bit_is_refused_and_the_file_is_left_as_it_is(
    tmp_path: Path, records: list[bytes]
) -> None:
    path = tmp_path / "log"
    data = written(path, records)
    for bit in range(len(data) * 8) if len(data) < 500 else range(0, len(data) * 8, 13):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ConfigError):
            found(path)
        assert path.read_bytes() == flipped


@pytest.mark.parametrize("start", [1, 100, 505, 512, 700])
def test_a_last_record_of_which_sectors_are_missing_is_dropped(tmp_path: Path, start: int) -> None:
    path = tmp_path / "log"
    head = len(written(path, [LONG[: start - 1]])) - start + 1
    data = bytearray(written(path, [LONG]))
    begin = head + start - 1
    assert found(path) == [LONG[: start - 1], LONG]
    ends = [begin, *range((begin // 512 + 1) * 512, len(data), 512), len(data)]
    for missing in range(1, 1 << len(ends) - 1):
        torn = bytearray(data)
        for number, (first, last) in enumerate(pairwise(ends)):
            if missing >> number & 1:
                torn[first:last] = bytes(last - first)
        path.write_bytes(torn)
        log = opened(path)
        log.close()
        assert log.records == [LONG[: start - 1]]
        assert log.dropped == len(data) - begin
        assert path.read_bytes() == data[:begin]


@pytest.mark.parametrize("n_bytes", [1, 11, 12, 13, 5000])
def test_zeros_behind_the_last_record_are_dropped(tmp_path: Path, n_bytes: int) -> None:
    data = written(tmp_path / "log")
    (tmp_path / "log").write_bytes(data + bytes(n_bytes))
    assert found(tmp_path / "log") == RECORDS
    assert (tmp_path / "log").read_bytes() == data


def test_damage_names_its_place(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path / "log"))
    data[25] ^= 1  # in the length of the first record
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(DamagedError, match=f"log is damaged at byte 22 of {len(data)}; restore a copy"):
        found(tmp_path / "log")


def test_another_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for content in (b"softs-fast coordinator 1\nxxxx", b"x", b"softs-fast log 1 other\n"):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(ConfigError, match=r"log begins with '.*', expected 'softs-fast log 1 test'"):
            found(path)
        assert path.read_bytes() == content
    path.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(ConfigError, match="expected at most 1,048,576"):
        found(path)


def test_a_log_that_others_can_read_and_a_folder_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "log")
    (tmp_path / "log").chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        found(tmp_path / "log")
    with pytest.raises(ConfigError, match="plain file"):
        found(tmp_path)
    with pytest.raises(SoftsError, match="log: No such file or directory"):
        found(tmp_path / "none" / "log")


def test_the_lock_ends_with_the_log_and_with_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    for content, can_open in ((b"x", False), (b"", True)):
        (tmp_path / "log").write_bytes(content)
        (tmp_path / "log").chmod(0o600)
        lock = Lock(tmp_path / "lock", "log")
        with suppress(ConfigError):
            log = Log(tmp_path / "log", "test", most_bytes=9999, what="log", lock=lock)
            assert can_open
            with pytest.raises(ConfigError, match="in use"):
                Lock(tmp_path / "lock", "log")
            log.close()
        Lock(tmp_path / "lock", "log").close()


@pytest.mark.parametrize("action", ["open", "append", "replace"])
def test_a_crash_at_any_write_leaves_the_records_before_or_those_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """Before each operation, and in the middle of each write, the folder is copied; each copy must open."""
    path = tmp_path / "log"
    before = [] if action == "open" else RECORDS
    log = None if action == "open" else opened(path)
    for record in before:
        assert log is not None
        log.append(record)
    states: list[dict[str, bytes]] = []
    originals = {name: getattr(os, name) for name in ("write", "fsync", "rename", "ftruncate")}

    def keep() -> None:
        states.append({one.name: one.read_bytes() for one in tmp_path.iterdir()})

    def write(fd: int, data: bytes) -> int:
        keep()
        return int(originals["write"](fd, data[: -(-len(data) // 2)]))

    def other(name: str) -> object:
        def kept(*arguments: object) -> object:
            keep()
            return originals[name](*arguments)

        return kept

    monkeypatch.setattr(os, "write", write)
    for name in ("fsync", "rename", "ftruncate"):
        monkeypatch.setattr(os, name, other(name))
    after = [*RECORDS, b"more"] if action == "append" else [b"new"] if action == "replace" else []
    if action == "open":
        log = opened(path)
    elif action == "append":
        assert log is not None
        log.append(b"more")
    else:
        assert log is not None
        log.replace([b"new"])
    assert log is not None
    log.close()
    keep()
    monkeypatch.undo()
    assert len(states) > 4
    outcomes = []
    for number, state in enumerate(states):
        folder = tmp_path / f"copy-{number}"
        folder.mkdir()
        for name, data in state.items():
            (folder / name).write_bytes(data)
            (folder / name).chmod(0o600)
        outcomes.append(found(folder / "log"))
        again = opened(folder / "log")
        again.replace([b"later"])
        again.close()
        assert found(folder / "log") == [b"later"]
    assert all(outcome in (before, after) for outcome in outcomes)
    assert outcomes[0] == before
    assert outcomes[-1] == after
    assert outcomes == sorted(outcomes, key=lambda outcome: outcome == after), "never back again"


@pytest.mark.parametrize("broken", ["write", "fsync"])
@pytest.mark.parametrize("undo", [True, False])
def test_a_failed_append_leaves_the_log_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, undo: bool
) -> None:
    path = tmp_path / "log"
    data = written(path)
    log = opened(path)
    write = os.write

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    def half(fd: int, given: bytes) -> int:
        if len(given) < 20:
            fail()
        return write(fd, given[: len(given) // 2])

    monkeypatch.setattr(os, broken, half if broken == "write" else fail)
    if not undo:
        monkeypatch.setattr(os, "ftruncate", fail)
    with pytest.raises(SoftsError, match="log: No space left on device"):
        log.append(b"lost" * 20)
    monkeypatch.undo()
    assert (path.read_bytes() == data) == undo
    log.append(b"more")
    log.close()
    assert found(path) == [*RECORDS, b"more"]


@pytest.mark.parametrize("broken", ["write", "fsync", "rename"])
def test_a_failed_replacement_leaves_the_log_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    path = tmp_path / "log"
    written(path)
    log = opened(path)

    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(SoftsError, match="log: Input/output error"):
        log.replace([b"new"])
    monkeypatch.undo()
    log.append(b"more")
    log.close()
    assert found(path) == [*RECORDS, b"more"]


def test_it_asks_to_be_compacted_when_it_has_grown(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    while not log.needs_compacting:
        log.append(bytes(16 << 10))
    assert (tmp_path / "log").stat().st_size > 256 << 10
    log.replace(RECORDS)
    assert not log.needs_compacting
    log.close()
    assert found(tmp_path / "log") == RECORDS
    assert os.listdir(tmp_path) == ["log"]
