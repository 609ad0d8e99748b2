"""What a config makes is on the host, whatever the default device of the user's program."""

from collections.abc import Iterator

import pytest
import torch

from softs_fast import BatchConfig, TensorSpec
from softs_fast.tensors import RaggedTensor

CONFIG = BatchConfig(
    [
        TensorSpec("x", (2,), "float32"),
        TensorSpec("h", (), "bfloat16"),
        TensorSpec("top", (4,), "float32", codec="topk:2"),
        TensorSpec("ids", (3,), "int64", ragged=True),
    ]
)
IDS = [torch.arange(2), torch.arange(3)]
X, TOP = torch.ones(2), torch.arange(4.0)


@pytest.fixture(autouse=True)
def other_device() -> Iterator[None]:
    with torch.device("meta"):
        yield


def test_samples_are_encoded_and_decoded() -> None:
    samples = [CONFIG.encode(x=X, h=1.5, top=TOP, ids=ids) for ids in IDS]
    one = CONFIG.decode(samples[1])
    assert (one["x"].tolist(), one["h"].item(), one["ids"].tolist()) == ([1, 1], 1.5, [0, 1, 2])
    for batch in (CONFIG.decode_batch(samples), CONFIG.collate([CONFIG.decode(each) for each in samples])):
        assert batch["x"].tolist() == [[1, 1], [1, 1]]
        assert batch["h"].tolist() == [1.5, 1.5]
        assert batch["top"].indices.tolist() == [[3, 2], [3, 2]]
        assert batch["ids"].lengths.tolist() == [2, 3]
        assert [row.tolist() for row in batch["ids"].unbind()] == [[0, 1], [0, 1, 2]]


def test_ragged_tensors_are_where_their_samples_are() -> None:
    ragged = RaggedTensor.from_samples(IDS)
    assert ragged.lengths.tolist() == [2, 3]
    assert ragged.padded(-1).tolist() == [[0, 1, -1], [0, 1, 2]]
    assert RaggedTensor.from_padded(ragged.padded(), ragged.lengths).values.tolist() == [0, 1, 0, 1, 2]
    assert ragged.nested().values().tolist() == [0, 1, 0, 1, 2]
