"""Tuples of tensors in batches survive what trainers and loaders do with tuples."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate, default_convert

from softs_fast.codecs import TopKLogits
from softs_fast.tensors import RaggedTensor

TUPLES = [
    TopKLogits(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2)),
    RaggedTensor(torch.arange(3), torch.tensor([1, 2])),
]


@pytest.mark.parametrize("data", TUPLES, ids=lambda data: type(data).__name__)
@pytest.mark.parametrize(
    "remake",
    [
        lambda data: type(data)(each.clone() for each in data),
        lambda data: type(data)([each.clone() for each in data]),
        lambda data: type(data)(tuple(data)),
        lambda data: type(data)(*data),
        lambda data: type(data)(**data._asdict()),
        lambda data: type(data)._make(iter(data)),
        lambda data: data._replace(),
        lambda data: pickle.loads(pickle.dumps(data)),
        copy.deepcopy,
        default_convert,
    ],
)
def test_they_are_made_again(data: Any, remake: Any) -> None:
    made = remake(data)
    assert type(made) is type(data)
    assert all(torch.equal(one, other) for one, other in zip(made, data, strict=True))


def test_samples_are_stacked_field_by_field() -> None:
    stacked = default_collate([TUPLES[0], TUPLES[0]])
    assert type(stacked) is TopKLogits
    assert stacked.lse.shape == (2, 2)


@pytest.mark.parametrize("fields", [(), (torch.ones(3, 3),), ([torch.ones(1)],), (1, 2, 3, 4)])
def test_other_fields_are_refused(fields: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="positional argument"):
        TopKLogits(*fields)
