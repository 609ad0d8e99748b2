"""The store of one process: exact values, bounded memory that is used again, and no data of rows that were freed."""

from __future__ import annotations

import math
import os

import pytest
import torch
from exact_values import same, tensors_of_every_dtype
from torch import Tensor

from softs_fast.dataflow.store import DataManager, Place, Places
from softs_fast.dataflow.store.values import Value
from softs_fast.errors import ConfigError, FlowError, ForkedError


def check(values: list[Value]) -> None:
    with DataManager(3, max_bytes=1 << 20) as store:
        places = store.put("x", range(len(values)), values)
        assert all(place.offset % 64 == 0 for place in places)
        assert all(map(same, store.get(places), values))
        # In another order, some twice, and as a message.
        order = [i % len(values) for i in range(len(values), -2, -1)]
        wire = [Place.from_wire(places[i].as_wire()) for i in order]
        assert all(map(same, store.get(wire), [values[i] for i in order]))
        column = Places.from_wire(places.select(order).as_wire())
        assert all(map(same, store.get(column), [values[i] for i in order]))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
def test_tensors_of_every_dtype_are_exact() -> None:
    check(tensors_of_every_dtype())


def test_tensors_of_any_memory_are_exact() -> None:
    base = torch.arange(60.0).view(5, 12)
    column = torch.randn(4, 3)
    check([base.t(), base[:, ::3], base[1:3], base.expand(2, 5, 12), *column.unbind(), column[0, 1]])
    complex_one = torch.randn(4, dtype=torch.complex64)
    check([complex_one.conj(), complex_one.conj().imag, torch.tensor([math.nan, -0.0, math.inf])])
    parameter = torch.nn.Parameter(torch.randn(3))
    check([parameter, (parameter * 2)[1:]])
    with DataManager(0, max_bytes=4096) as store:
        [value] = store.get(store.put("x", [1], [parameter]))
        assert type(value) is Tensor
        assert not value.requires_grad


def test_values_that_are_no_tensors_are_exact() -> None:
    numbers: list[Value] = [0, 1, -1, 127, 128, -128, -129, 2**63, -(2**64), 10**40]
    check([*numbers, 0.0, -0.0, 1e-320, math.nan, -math.inf, True, False])
    check(["", "text", "\u00e4\u4e2d\U0001f600", "\ud800", b"", b"\0\xff" * 99])
    check([None, torch.ones(3), None, "None", b"", 0, None])
    check([None, None])
    check([[], [torch.ones(3)], [torch.ones(2, dtype=torch.bfloat16), torch.tensor(3), torch.empty(0, 2)]])


def test_rows_of_one_call_lie_one_behind_the_other() -> None:
    with DataManager(0, max_bytes=1 << 16) as store:
        places = store.put("x", [1, 2, 3], [torch.ones(n, dtype=torch.uint8) for n in (56, 57, 1)])
        assert [place.offset for place in places] == [0, 64, 192]
        assert store.n_bytes == 256
        assert store.free_bytes == (1 << 16) - 256


def test_what_a_reader_gets_is_its_own() -> None:
    with DataManager(0, max_bytes=4096) as store:
        source = torch.zeros(4)
        places = store.put("x", [1], [source])
        source += 1
        [value] = store.get(places)
        assert isinstance(value, Tensor)
        value += 5
        store.free([1])
        store.put("x", [2], [torch.full((4,), 9.0)])
        assert value.tolist() == [5.0] * 4


def test_columns_without_rows_go() -> None:
    with DataManager(0, max_bytes=1 << 16) as store:
        store.put("x", [1, 2], [b"of x"] * 2)
        for i in range(100):  # as copies of weights are named
            store.put(f"weights 0 {64 * i}", [1], [b"weights"])
        store.free([1])
        assert list(store._columns) == ["x"]
        store.free([2])
        assert store._columns == {}
        assert store.n_bytes == 0


def test_rows_that_were_freed_are_not_read() -> None:
    with DataManager(7, max_bytes=1 << 16) as store:
        freed = store.put("x", [1, 2], [torch.zeros(20), "text"])
        kept = store.put("y", [3], [torch.ones(3)])
        store.free([1, 99])
        with pytest.raises(FlowError, match="1 of 2 values of worker 7 are gone, the first at 0"):
            store.get(freed)
        store.free([2])
        store.put("x", [4, 5], [torch.zeros(20), "text"])  # the same memory
        with pytest.raises(FlowError, match="2 of 3 values of worker 7 are gone"):
            store.get([*kept, *freed])
        assert same(store.get(kept)[0], torch.ones(3))


def test_a_row_freed_during_the_copy_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    from softs_fast import _kernels

    with DataManager(0, max_bytes=1 << 16) as store:
        places = store.put("x", [1], [torch.zeros(20)])
        copy = _kernels.snapshot_scatter

        def slow(*given: object) -> None:
            copy(*given)  # type: ignore[arg-type]
            monkeypatch.undo()
            store.free([1])

        monkeypatch.setattr(_kernels, "snapshot_scatter", slow)
        with pytest.raises(FlowError, match="are gone"):
            store.get(places)


def test_a_value_is_replaced() -> None:
    with DataManager(0, max_bytes=1 << 16) as store:
        first = store.put("x", [1, 2], [1, 2])
        second = store.put("x", [2], ["new"])
        assert store.get([first[0], *second]) == [1, "new"]
        with pytest.raises(FlowError, match="are gone"):
            store.get(first)
        assert store.n_bytes == 128
        store.free([1, 2])
        assert (store.n_bytes, store.free_bytes) == (0, 1 << 16)


def test_what_does_not_fit_changes_nothing() -> None:
    with DataManager(0, max_bytes=640) as store:
        [place] = store.put("x", [1], [torch.zeros(100, dtype=torch.uint8)])
        with pytest.raises(
            FlowError, match=r"'y' of 2 rows needs 576 bytes.*worker 0, 512 of 640 are free; free rows"
        ):
            store.put("y", [1, 2], [b"1" * 248, b"2" * 257])
        assert store.free_bytes == 512
        assert same(store.get([place])[0], torch.zeros(100, dtype=torch.uint8))
        store.put("y", [1, 2], [b"1" * 248, b"2" * 248])
        assert store.free_bytes == 0
        store.free([1])
        assert store.free_bytes == 384


def test_memory_that_the_host_does_not_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, start: int, length: int) -> None:
        raise OSError(28, "no space left on device")

    with DataManager(0, max_bytes=64 << 20) as store:
        [place] = store.put("x", [1], [1])
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            # More often than there is room for it.
            for _ in range(20):
                with pytest.raises(FlowError, match=r"'y' of 1 rows needs 8388672 bytes.*enlarge /dev/shm"):
                    store.put("y", [2], [bytes(8 << 20)])
        assert store.n_bytes == 64
        store.put("y", [2], [bytes(8 << 20)])
        assert store.get([place]) == [1]


def test_bad_values_are_refused_before_anything_is_written() -> None:
    with DataManager(0, max_bytes=4096) as store:
        for values, why in [
            ([1, {}], "has a dict"),
            ([1, [torch.ones(1), None]], "a list with a NoneType"),
            ([1, [torch.ones(1), 2]], "a list with a int"),
            ([1, torch.ones(2, 2).to_sparse()], "is of layout sparse_coo; expected a dense tensor"),
        ]:
            with pytest.raises(FlowError, match=f"column ['\"]x['\"] .*{why}"):
                store.put("x", [1, 2], values)  # type: ignore[arg-type]
        with pytest.raises(FlowError, match="1 values for 2 ids"):
            store.put("x", [1, 2], [1])
        with pytest.raises(FlowError, match="2 values for 2 ids, 1 different"):
            store.put("x", [1, 1], [1, 2])
        assert store.n_bytes == 0
        assert list(store.put("x", [], [])) == []
        assert store.get([]) == []
    for worker, max_bytes in [(-1, 4096), (0, 0), (0, 1 << 60)]:
        with pytest.raises(ConfigError):
            DataManager(worker, max_bytes=max_bytes)


def test_a_closed_store_says_so() -> None:
    store = DataManager(4, max_bytes=4096)
    places = store.put("x", [1], [torch.ones(2)])
    with DataManager(5, max_bytes=4096) as reader:
        assert same(reader.get(places)[0], torch.ones(2))
        store.close()
        store.close()
        assert store.n_bytes == 0
        for use in (lambda: store.put("x", [1], [1]), lambda: store.get(places), lambda: store.free([1])):
            with pytest.raises(FlowError, match="store of worker 4 is closed"):
                use()
        assert same(reader.get(places)[0], torch.ones(2))


def test_a_store_is_not_used_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with DataManager(4, max_bytes=4096) as store:
        places = store.put("x", [1], [1])
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            for use in (lambda: store.put("x", [1], [1]), lambda: store.get(places), lambda: store.free([1])):
                with pytest.raises(ForkedError, match="store of worker 4"):
                    use()
