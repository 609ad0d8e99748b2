"""Values of another host are exact, are held where they were fetched to, and are never those of freed rows."""

from __future__ import annotations

import math
import random
import threading

import pytest
import torch
from exact_values import same, tensors_of_every_dtype
from two_stores import store_on

from softs_fast.dataflow.store import DataManager, Place, Places
from softs_fast.dataflow.store.values import Value
from softs_fast.errors import FlowError


def rows_of_every_kind() -> list[Value]:
    ragged = [torch.randint(0, 9999, (length, 3)) for length in (0, 1, 5, 1000, 20_000)]
    return [*tensors_of_every_dtype(), *ragged, "text \ud800", "", b"", None, bytes(range(256)), True, False, 0, -(1 << 90), -0.0, math.nan,
            [ragged[2], torch.ones(2, dtype=torch.bool)], []]  # fmt: skip


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_every_kind_of_value_is_exact_on_another_host() -> None:
    rows = rows_of_every_kind()
    ids = range(len(rows))
    with store_on("near", 0) as holder, store_on("far", 1) as other, store_on("third", 2) as third:
        places = Places.from_wire(holder.put("x", ids, rows).as_wire())
        assert all(map(same, other.get(places), rows))
        assert other.fetched_bytes == int(places.n_bytes.sum())
        order = [i % len(rows) for i in range(len(rows), -3, -1)]
        assert all(map(same, other.get([places[i] for i in order]), [rows[i] for i in order]))
        # What was fetched is held there, and is read from there by yet another host when the first one has gone.
        mixed = [*places[:20], *holder.put("y", [7], [b"of y"])]
        here = other.fetch("x", range(21), mixed)
        assert all(not other.is_elsewhere(place) and place.worker == 1 for place in here)
        holder.close()
        assert all(map(same, other.get(here), [*rows[:20], b"of y"]))
        assert all(
            map(same, third.get([Place.from_wire(one.as_wire()) for one in here]), [*rows[:20], b"of y"])
        )
        other.free(range(21))
        assert other.n_bytes == 0


@pytest.mark.parametrize("empty", [None, "", torch.empty(0), torch.empty(2, 0, 3, dtype=torch.int64)])
def test_rows_without_a_single_byte_are_there_too(empty: Value) -> None:
    rows = [empty] * 3
    with store_on("near", 0) as holder, store_on("far", 1) as other:
        places = holder.put("x", range(3), rows)
        assert all(map(same, other.get(Places.from_wire(places.as_wire())), rows))
        assert all(map(same, other.get(other.fetch("x", range(3), places)), rows))
        holder.free([1])
        with pytest.raises(FlowError, match="value 1 of 3 of worker 0 is gone"):
            other.get(places)


@pytest.mark.parametrize("lists", [1, 2])
def test_a_column_of_tensors_and_lists_of_one_tensor_is_exact_on_another_host(lists: int) -> None:
    tensor, other = torch.arange(5.0), torch.arange(9.0)
    rows: list[Value] = [tensor, [other], *([[tensor]] * (lists - 1))]
    with store_on("near", 0) as holder, store_on("far", 1) as far:
        places = holder.put("x", range(len(rows)), rows)
        assert all(map(same, far.get(places), rows))


def test_values_of_two_hosts_are_fetched_together() -> None:
    with store_on("a", 0) as first, store_on("b", 1) as second, store_on("c", 2) as third:
        values = [torch.arange(float(i)) for i in range(10)]
        places = [(first, second)[i % 2].put("x", [i], values[i : i + 1])[0] for i in range(10)]
        assert all(map(same, third.get(third.fetch("x", range(10), places)), values))
        second.free([9])
        n_bytes = third.n_bytes
        with pytest.raises(FlowError, match="value 4 of 5 of worker 1 is gone: its row was freed"):
            third.fetch("again", range(10), places)
        assert third.n_bytes == n_bytes, "all or nothing"


def test_a_store_without_room_says_so_and_changes_nothing() -> None:
    with store_on("a", 0) as holder, store_on("b", 1, max_bytes=4096) as small:
        places = holder.put("x", range(3), [torch.zeros(300)] * 3)
        small.fetch("x", [0], places[:1])
        with pytest.raises(
            FlowError, match=r"needs 3648 bytes in the store of worker 1, 2880 of 4096 are free"
        ):
            small.fetch("y", range(3), places)
        assert small.n_bytes == 1216


def test_rows_that_are_freed_and_written_again_are_never_mixed_up() -> None:
    """The holder frees and writes as fast as it can; a value of large rows is the right one, or gone."""
    n, size, seed = 16, 100_000, random.Random(3)
    is_over = threading.Event()
    with store_on("a", 0, max_bytes=1 << 24) as holder, store_on("b", 1) as reader:
        known: dict[int, tuple[int, Place]] = {}

        def write() -> None:
            count = 0
            while not is_over.is_set():
                row = seed.randrange(n)
                holder.free([row])
                count += 1
                value = torch.full((seed.randrange(1, size),), count)
                known[row] = count, holder.put("x", [row], [value])[0]

        writer = threading.Thread(target=write)
        writer.start()
        read, gone = 0, 0
        try:
            while read < 50 or gone < 5:
                for count, place in list(known.values()):
                    try:
                        [value] = reader.get([place])
                    except FlowError as error:
                        gone += "is gone: its row was freed" in str(error)
                    else:
                        assert isinstance(value, torch.Tensor)
                        assert bool((value == count).all())
                        read += 1
        finally:
            is_over.set()
            writer.join()


def test_threads_read_at_once() -> None:
    with store_on("a", 0) as holder, store_on("b", 1) as reader:
        places = holder.put("x", range(50), [torch.full((i * 50,), i) for i in range(50)])
        errors: list[BaseException] = []

        def read() -> None:
            try:
                for _ in range(5):
                    assert [int(value.sum()) for value in reader.get(places)] == [
                        i * i * 50 for i in range(50)
                    ]
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors


def test_a_store_without_links_says_that_rows_are_on_another_host() -> None:
    with store_on("a", 0) as holder, DataManager(1, max_bytes=4096) as plain:
        [place] = holder.put("x", [1], [1.5])
        assert plain.is_elsewhere(place)
        with pytest.raises(FlowError, match="has no links to other hosts"):
            plain.fetch("x", [1], [place])
