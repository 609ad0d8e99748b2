"""Items are copied to a device one ahead of the caller, and none is lost."""

from typing import Any

import pytest
import torch

from softs_fast.codecs import TopKLogits
from softs_fast.loader.readers.transfer import Transfer, TransferReader
from softs_fast.tensors.ragged import RaggedTensor

N_ROWS = 3


class Samples:
    """A reader that has so many samples, and makes lists of their numbers."""

    n_rows = N_ROWS
    is_starved = False

    def __init__(self) -> None:
        self.n_there = self.n_taken = self.n_begun = self.n_forgotten = 0

    def begin(self, product_id: str) -> None:
        self.n_begun += 1

    def forget(self) -> None:
        self.n_forgotten += 1

    def fill(self, product_id: str, done: int, timeout_ms: int) -> int:
        assert product_id == "p"
        return min(self.n_there - self.n_taken, N_ROWS) if done < N_ROWS else done

    def take(self) -> list[int]:
        self.n_taken += N_ROWS
        return list(range(self.n_taken - N_ROWS, self.n_taken))


class Moves:
    """A transfer that records what it began and finished, and fails when it is told to."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.finished: list[Any] = []
        self.fails = False

    def begin(self, item: Any) -> Any:
        self.begun.append(item)
        if self.fails:
            raise RuntimeError("out of memory")
        return item

    def finish(self, moved: Any) -> Any:
        self.finished.append(moved)
        return moved


@pytest.fixture
def samples() -> Samples:
    return Samples()


@pytest.fixture
def moves() -> Moves:
    return Moves()


@pytest.fixture
def reader(samples: Samples, moves: Moves) -> TransferReader:
    return TransferReader(samples, moves)


def test_the_next_item_is_on_its_way_while_the_caller_is_busy(
    reader: TransferReader, samples: Samples, moves: Moves
) -> None:
    samples.n_there = 6
    assert reader.fill("p", 0, 10) == N_ROWS
    assert reader.take() == [0, 1, 2]
    assert moves.begun == [[0, 1, 2]], "nothing is copied for a caller that is back at once"
    reader.begin("p")
    assert (moves.begun, moves.finished) == ([[0, 1, 2], [3, 4, 5]], [[0, 1, 2]])
    assert reader.fill("p", 0, 10) == N_ROWS
    assert reader.take() == [3, 4, 5]


def test_an_item_that_is_not_complete_is_waited_for(reader: TransferReader, samples: Samples) -> None:
    samples.n_there = 1
    reader.begin("p")
    assert samples.n_begun == 1
    # Samples that came show as progress, also those that came before.
    assert reader.fill("p", 0, 10) == 1
    samples.n_there = 3
    assert reader.fill("p", 1, 10) == N_ROWS
    assert reader.take() == [0, 1, 2]


def test_what_is_ahead_is_dropped(reader: TransferReader, samples: Samples) -> None:
    samples.n_there = 6
    reader.begin("p")
    reader.forget()
    assert samples.n_forgotten == 1
    assert reader.fill("p", 0, 10) == N_ROWS
    assert reader.take() == [3, 4, 5]


def test_an_error_is_that_of_the_next_item(reader: TransferReader, samples: Samples, moves: Moves) -> None:
    samples.n_there = 9
    moves.fails = True
    reader.begin("p")
    moves.fails = False
    with pytest.raises(RuntimeError, match="out of memory"):
        reader.fill("p", 0, 10)
    assert reader.fill("p", 0, 10) == N_ROWS
    reader.take()
    moves.fails = True
    reader.begin("p")
    reader.forget()
    moves.fails = False
    samples.n_there = 12
    assert reader.fill("p", 0, 10) == N_ROWS, "a switch drops the error with the item"


def test_items_of_any_form_are_moved() -> None:
    transfer = Transfer(torch.device("meta"))
    one = torch.ones(2)
    moved = transfer(
        {"a": one, "b": [one, (one, "text")], "k": TopKLogits(one, one, one), "r": RaggedTensor(one, one)}
    )
    assert isinstance(moved["k"], TopKLogits)
    assert isinstance(moved["r"], RaggedTensor)
    flat = [moved["a"], moved["b"][0], moved["b"][1][0], *moved["k"], *moved["r"]]
    assert [tensor.device.type for tensor in flat] == ["meta"] * 8
    assert moved["b"][1][1] == "text"
