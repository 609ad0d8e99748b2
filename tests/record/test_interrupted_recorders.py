"""A handler of a signal that raises in the midst of a recorder, as on Ctrl-C: each number is recorded once, and nothing hangs."""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recordings import PLAIN, check, plain, recorder
from waiting import WATCHDOG_S

from softs_fast import RecordOptions
from softs_fast.loader.tap import RecordingTap
from softs_fast.record import Recorder, Recording
from softs_fast.record import recorder as module
from softs_fast.record.shard_writer import ShardWriter


class Interrupt(BaseException):
    """What the handler raises."""


def interrupted(at: int, run: Callable[[], object]) -> bool:
    """Raise where Python calls handlers of signals: at the beginning of a function, or once one of C returns.

    Returns:
        Whether it came to that.
    """
    left, was = itertools.count(at, -1), False

    def interrupt(frame: Any, event: str, value: Any) -> None:
        nonlocal was
        # There, Python itself would leave the lock of a handler held.
        if frame.f_globals["__name__"] == logging.__name__:
            return
        if event in ("call", "c_return") and next(left) == 0:
            was = True
            raise Interrupt

    sys.setprofile(interrupt)
    try:
        run()
    except Interrupt:
        assert was
    finally:
        sys.setprofile(None)
    return was


@pytest.mark.parametrize("is_taken_again", [True, False])
def test_a_batch_that_is_interrupted_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_taken_again: bool
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 3 * 28)
    writer = recorder(tmp_path, shard_bytes=1 << 20)
    n = 0
    for at in itertools.count():
        batch = plain(range(n, n + 5))
        was_interrupted = interrupted(at, partial(writer.record, "p", n, batch))
        if is_taken_again:
            writer.record("p", n, batch)
        n += 5
        if not was_interrupted:
            break
    writer.close()
    assert at > 50
    with Recording(tmp_path) as recording:
        there = set(recording.numbers)
    # What is there is whole, and of each batch the first samples.
    check(tmp_path, range(n) if is_taken_again else sorted(there))
    assert all(number % 5 == 0 or number - 1 in there for number in there)
    assert len(there) < n or is_taken_again


def test_an_end_that_is_interrupted_anywhere_still_writes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, is_free = ShardWriter.append, threading.Event()

    def wait(self: ShardWriter, rows: Any) -> None:
        assert is_free.wait(WATCHDOG_S)
        append(self, rows)

    monkeypatch.setattr(ShardWriter, "append", wait)
    monkeypatch.setattr(module, "_FLUSH_S", 0.001)
    for at in range(40):
        is_free.clear()
        writer = recorder(tmp_path / str(at))
        writer.record("p", 0, plain(range(5)))
        assert interrupted(at, writer.close)
        assert writer._finalizer.alive
        is_free.set()
        # As at the end of the process.
        del writer
        check(tmp_path / str(at), range(5))


def test_a_loader_that_is_interrupted_at_its_end_is_closed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Recorder] = []
    close = Recorder.close

    def interrupt_once(self: Recorder) -> None:
        closed.append(self)
        if len(closed) == 1:
            raise Interrupt
        close(self)

    monkeypatch.setattr(Recorder, "close", interrupt_once)
    dataset: Any = SimpleNamespace(
        batch_config=PLAIN, ordered=True, ranks=lambda: SimpleNamespace(rank=0, world_size=1)
    )
    tap = RecordingTap(RecordOptions(tmp_path), dataset)
    tap("p", 0, plain(range(5)))
    with pytest.raises(Interrupt):
        tap.close()
    tap.close()
    check(tmp_path, range(5))
    # It is closed: a later batch continues it.
    tap("p", 5, plain(range(5, 10)))
    tap.close()
    check(tmp_path, range(10))
