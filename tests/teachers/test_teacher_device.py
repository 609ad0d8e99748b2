"""Texts, data and results are on the host, whatever the default device of the program that makes them."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from softs_fast.teachers.data import StackedData
from softs_fast.teachers.host_batch import HostBatch
from softs_fast.teachers.tokens import PaddedTexts

ROWS = torch.arange(4.0).view(2, 2)


@pytest.fixture(autouse=True)
def other_device() -> Iterator[None]:
    with torch.device("meta"):
        yield


def tokenize(texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
    return {"input_ids": [list(text.encode()) for text in texts]}


def test_texts() -> None:
    batch = PaddedTexts(tokenize, ["\1\2", "\3"], length=3, pad_id=0).batch([1, 0])
    assert batch["ids"].tolist() == [[3, 0, 0], [1, 2, 0]]
    assert batch["mask"].tolist() == [[True, False, False], [True, True, False]]


def test_data() -> None:
    assert StackedData(list(zip(ROWS, [5, 6], strict=True))).batch([1])["0"].tolist() == [[2, 3]]
    assert StackedData([5, 6]).batch([1])["input"].tolist() == [6]


def test_results() -> None:
    made = HostBatch(2, torch.device("cpu"))
    made.put(0, {"x": ROWS})
    assert torch.equal(made.finish()["x"].cpu(), ROWS)
