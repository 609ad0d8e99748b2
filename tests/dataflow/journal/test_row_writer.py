"""The thread that writes rows of a save: what cannot be read or written is left out, and it ends when it is told."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import WATCHDOG_S, eventually

from softs_fast.dataflow.journal.rows import RowWriter
from softs_fast.dataflow.master.holdings import Frees, Holdings
from softs_fast.dataflow.master.rows.made import Bound, MadeGroup
from softs_fast.dataflow.process.row_file import RowFile
from softs_fast.errors import PeerLost

BOUND = Bound(1, 1)


class Values:
    """A backend of which the places are the values; reading one may be an error, or wait."""

    def __init__(self) -> None:
        self.freed: list[int] = []
        self.gone: set[Any] = set()
        self.is_asked, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()

    def free(self, frees: Frees) -> None:
        self.freed += [row_id for ids in frees.values() for row_id in ids]

    def values(self, places: Sequence[Any]) -> list[Any]:
        self.is_asked.set()
        assert self.may_go_on.wait(WATCHDOG_S)
        if any(isinstance(place, str) and place in self.gone for place in places):
            raise PeerLost("worker 1 has ended")
        return list(places)


def a_group(first_id: int, tags: Any = None, n_bytes: int = 8) -> MadeGroup:
    return MadeGroup(first_id, 1, n_bytes, 0, ("make",), ("a",), (tags or {},), {})


def writer_of(path: Path, values: Values, groups: Sequence[MadeGroup], places: Sequence[Any]) -> RowWriter:
    backend: Any = values
    held = Holdings()
    for one in groups:
        held.admit(one.ids)
    ids = [one.first_id for one in groups]
    held.put(ids, {"a": places}, 1)
    writer = RowWriter(path, groups, BOUND, held, backend)
    values.free(held.drop(ids))
    return writer


def written(path: Path) -> dict[int, Any]:
    file = RowFile(path)
    return {
        row_id: value
        for one in file.columns(list(file.groups.values()), range(len(file.pieces)))
        for row_id, value in zip(one.ids, one.values, strict=True)
    }


def test_what_cannot_be_in_a_file_is_left_out(tmp_path: Path) -> None:
    sparse = torch.ones(2).to_sparse()
    groups = [
        a_group(0, {"a": 1}),
        *(a_group(1, {"a": 1 << 64}), a_group(2, {"a": torch.ones(1)}), a_group(3, {3: 1})),
        # Each is larger than what is read at a time.
        *(a_group(4, n_bytes=9 << 20), a_group(5, n_bytes=9 << 20), a_group(6, n_bytes=9 << 20)),
    ]
    values = Values()
    values.gone = {"gone"}
    writer = writer_of(tmp_path / "rows", values, groups, ["x", 1, 2, 3, sparse, "gone", "y"])
    writer.start()
    writer.end()
    assert written(tmp_path / "rows") == {0: "x", 6: "y"}
    assert writer.n_unread == 2
    assert sorted(values.freed) == list(range(7))


def test_rows_keep_their_memory_until_they_are_read(tmp_path: Path) -> None:
    values = Values()
    values.may_go_on.clear()
    writer = writer_of(tmp_path / "rows", values, [a_group(0), a_group(1)], ["x", "y"])
    writer.release()
    writer.start()
    assert values.is_asked.wait(WATCHDOG_S)
    writer.release()
    assert not values.freed
    assert not writer.is_done
    values.may_go_on.set()
    writer.end()
    assert sorted(values.freed) == [0, 1]
    writer.release()
    assert sorted(values.freed) == [0, 1]


def go_on_when_told(writer: RowWriter, values: Values) -> None:
    eventually(lambda: writer._is_stopped, "it is told to stop")
    values.may_go_on.set()


@pytest.mark.parametrize("is_started", [False, True])
def test_it_stops_when_it_is_told(is_started: bool, tmp_path: Path) -> None:
    values = Values()
    values.may_go_on.clear()
    groups = [a_group(i, n_bytes=9 << 20) for i in range(3)]
    writer = writer_of(tmp_path / "rows", values, groups, ["x", "y", "z"])
    if is_started:
        writer.start()
        assert values.is_asked.wait(WATCHDOG_S)
        threading.Thread(target=go_on_when_told, args=(writer, values)).start()
    writer.stop()
    writer.stop()
    assert sorted(values.freed) == [0, 1, 2]
    # One was read, and there is no index.
    assert not is_started or (tmp_path / "rows").stat().st_size < 100


def test_an_error_is_that_of_the_save(tmp_path: Path) -> None:
    values = Values()
    (tmp_path / "rows").mkdir()
    writer = writer_of(tmp_path / "rows", values, [a_group(0)], ["x"])
    writer.start()
    with pytest.raises(OSError, match="rows"):
        writer.end()
    assert values.freed == [0]
