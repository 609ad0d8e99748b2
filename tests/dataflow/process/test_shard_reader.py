"""One shard: a sequence is indexed, an iterable is skipped forward; what is no element is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import softs_fast.dataflow as df
from softs_fast.dataflow.process.shards import ShardReader
from softs_fast.errors import FlowError


class Some(df.Role):
    """Has a dataset."""

    def shard(self, shard: int, n_shards: int) -> Any: ...


DATASET = df.dataset(df.place(Some, "dp3", on=[4, 5, 6]).shard, "x, y", tags="length, kind")


def element(number: int, **changes: Any) -> dict[str, Any]:
    whole = {"x": torch.tensor([number]), "y": f"{number}", "length": number, "kind": "plain", "more": set()}
    return {key: value for key, value in {**whole, **changes}.items() if value is not None}


class Numbers(Sequence[Any]):
    """Elements that are made when they are indexed."""

    def __init__(self, n: int) -> None:
        self.n, self.log = n, list[int]()

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: Any) -> Any:
        self.log.append(at)
        return element(at)


def reader(given: Any) -> ShardReader:
    return ShardReader(DATASET, lambda shard, n: given, 1, 5)


def test_a_shard_is_asked_for_by_its_number() -> None:
    asked: list[tuple[int, int]] = []
    ShardReader(DATASET, lambda *numbers: asked.append(numbers) or [], 1, 5)  # type: ignore[func-returns-value]
    assert asked == [(1, 3)]
    assert DATASET.heads == (4, 5, 6)


def test_a_sequence_is_indexed() -> None:
    given = Numbers(6)
    one = reader(given)
    assert one.n_elements == 6
    found = one.read([1, 4])
    assert found.columns == [[torch.tensor([1]), torch.tensor([4])], ["1", "4"]]
    assert found.tags == [{"length": 1, "kind": "plain"}, {"length": 4, "kind": "plain"}]
    assert (found.length, found.failure) == (None, None)
    assert one.read([0]).tags[0]["length"] == 0
    end = one.read([5, 6, 7])
    assert (len(end.tags), end.length) == (1, 6)
    assert given.log == [1, 4, 0, 5]


def test_an_iterable_is_skipped_forward_and_begun_anew() -> None:
    log: list[str] = []

    def stream() -> Iterator[Any]:
        log.append("begin")
        for number in range(5):
            log.append(str(number))
            yield element(number)

    one = ShardReader(DATASET, lambda shard, n: stream(), 1, 5)
    assert one.n_elements is None
    assert log == []
    assert [tags["length"] for tags in one.read([1, 3]).tags] == [1, 3]
    assert log == ["begin", "0", "1", "2", "3"]
    end = one.read([4, 5])
    assert ([tags["length"] for tags in end.tags], end.length) == ([4], 5)
    assert one.read([9]).length == 5
    assert log.count("begin") == 1
    assert [tags["length"] for tags in one.read([0, 2]).tags] == [0, 2]
    assert log.count("begin") == 2


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"y": None}, "it lacks y; it has x, length, kind, more"),
        ({"length": None}, "it lacks length; it has x, y, kind, more"),
        ({"x": {1, 2}}, "column 'x' has a set; expected a tensor, a list of tensors, a NumPy"),
        ({"x": [torch.ones(1), 2]}, "column 'x' has a list of Tensor, int; expected a tensor"),
        ({"kind": b"bytes"}, "tag 'kind' is a bytes; need a number, True, False, or text"),
        ({"kind": "x" * 70_000}, "need a number, True, False, or text of at most 65536 characters"),
    ],
)
def test_what_is_no_element_is_named(changes: dict[str, Any], complaint: str) -> None:
    found = reader([element(0), element(1, **changes), element(2)]).read([0, 1, 2])
    assert [tags["length"] for tags in found.tags] == [0]
    assert found.failure is not None
    assert isinstance(found.cause, FlowError)
    assert found.failure.text.startswith("some.shard: shard 1 of 3 on worker 5, element 1: FlowError: ")
    assert complaint in found.failure.text


def test_an_exception_is_named_with_its_traceback() -> None:
    def stream() -> Iterator[Any]:
        yield element(0)
        raise OSError("no such file")

    found = reader(stream()).read([0, 1, 2])
    assert len(found.tags) == 1
    assert found.failure is not None
    assert found.failure.text.startswith(
        "some.shard: shard 1 of 3 on worker 5, element 1: OSError: no such file\n"
    )
    assert "Traceback" in found.failure.text
    assert 'raise OSError("no such file")' in found.failure.text


def test_what_is_no_dict_is_an_error_and_no_end() -> None:
    for wrong, name in (([1], "list"), (None, "NoneType")):
        found = reader([wrong]).read([0])
        assert found.failure is not None
        assert f"it is a {name}; need a dict of x, y, length, kind" in found.failure.text


def test_a_reader_that_is_not_wanted_any_more_stops() -> None:
    given = Numbers(6)
    assert len(reader(given).read(range(6), lambda: len(given.log) == 2).tags) == 2
