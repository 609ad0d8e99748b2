"""Queues of a loader: what is put in comes out, without a thread while the pipe has room, and nobody waits for a reader."""

import contextlib
import multiprocessing
import os
import random
import threading
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from queue import Full
from typing import Any

import pytest

from softs_fast.loader import direct_queue
from softs_fast.loader.direct_queue import DirectQueue, with_direct_queues

CONTEXTS = ["fork", "spawn"]

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def direct_queue_of(method: str) -> Any:
    return with_direct_queues(multiprocessing.get_context(method)).Queue()


@pytest.fixture
def queue() -> Iterator[Any]:
    """A queue of this process; its thread, if it has come to that, has ended."""
    queue = direct_queue_of("fork")
    yield queue
    queue.close()
    queue.join_thread()
    queue._reader.close()
    queue._writer.close()


def has_thread() -> bool:
    return "QueueFeederThread" in {thread.name for thread in threading.enumerate()}


def put_all(queue: Any, items: list[bytes], answers: Any) -> None:
    for item in items:
        queue.put(item)
    answers.send(has_thread())
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize("method", CONTEXTS)
def test_items_of_another_process(method: str) -> None:
    queue = direct_queue_of(method)
    here, there = multiprocessing.Pipe()
    items = [os.urandom(n) for n in (0, 1, 100, 5_000, 20_000)]
    process = multiprocessing.get_context(method).Process(
        target=put_all, args=(queue, items, there), daemon=True
    )
    process.start()
    assert [queue.get(timeout=30) for _ in items] == items
    assert here.recv() is False, "a thread for what fits"
    process.join()
    for end in (here, there, queue._reader, queue._writer):
        end.close()


def test_nobody_waits_for_a_reader(queue: Any) -> None:
    items = [bytes([i]) * 60_000 for i in range(40)]
    for item in items:
        queue.put(item)
    assert has_thread(), "2.4 MB do not fit into a pipe"
    assert [queue.get(timeout=30) for _ in items] == items
    queue.put(b"the thread has the word for ever, or items would overtake others")
    assert has_thread()
    assert queue.get(timeout=30).startswith(b"the thread")


def test_nobody_waits_for_who_was_stopped_while_he_wrote(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_queue, "_MOMENT_S", 0.001)
    with queue._wlock:
        queue.put("late")
        assert not queue._poll(0.02)
    assert queue.get(timeout=30) == "late"


def test_a_queue_with_a_limit() -> None:
    queue: Any = DirectQueue(2, ctx=multiprocessing.get_context("fork"))
    for item in "ab":
        queue.put(item)
    with pytest.raises(Full):
        queue.put("c", timeout=0.01)
    assert [queue.get(timeout=30) for _ in "ab"] == ["a", "b"]
    queue.put("d")
    assert queue.get(timeout=30) == "d"
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.put("e")
    queue._reader.close()
    queue._writer.close()


@pytest.mark.parametrize("seed", range(20))
def test_what_fits_never_blocks(seed: int) -> None:
    chance = random.Random(seed)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    n_written = n_refused = 0
    for _ in range(2_000):
        n = chance.choice((1, 3, 4_092, 4_093, 4_097, 10_000, chance.randrange(1, 30_000)))
        if direct_queue._fits(writer, n):
            # As connections write: header and content at once, or, if there is much of it, one after the other.
            for part in (n + 4,) if n <= 16_384 else (4, n):
                assert os.write(writer, bytes(part)) == part
            n_written += 1
        else:
            n_refused += 1
        if chance.random() < 0.4:
            with contextlib.suppress(BlockingIOError):
                os.read(reader, chance.randrange(1, 30_000))
    assert n_written > 100 < n_refused
    os.close(reader)
    os.close(writer)


def test_the_context_is_like_the_one_that_was_given() -> None:
    for method in CONTEXTS:
        given = multiprocessing.get_context(method)
        direct = with_direct_queues(given)
        assert isinstance(direct, BaseContext)
        assert direct.get_start_method() == method
        assert "Queue" not in vars(given)
    assert with_direct_queues(None).get_start_method() == multiprocessing.get_start_method()
