"""A batch that is handed out again is as it was, or is known to be another one."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from typing import Any

import pytest
import torch

from softs_fast.codecs import TopKLogits
from softs_fast.job.retained import Retained
from softs_fast.tensors import RaggedTensor


def ones(n: int) -> torch.Tensor:
    return torch.ones(n)


BATCHES = {
    "a dict": {"x": ones(2), "label": ones(3)},
    "ragged": {"ids": RaggedTensor(ones(3), ones(2))},
    "top-k logits": {"logits": TopKLogits(ones(4), ones(4), ones(2))},
    "nested dicts": OrderedDict(input=OrderedDict(x=ones(2)), texts=["a", "b"]),
    "a tuple": (ones(2), [ones(1), ones(3)]),
    "one tensor": ones(2),
}


def leaves(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    parts = (
        list(batch.values()) if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else []
    )
    return [tensor for one in parts for tensor in leaves(one)]


@pytest.mark.parametrize("name", BATCHES)
def test_a_write_into_any_of_its_tensors_is_seen(name: str) -> None:
    for place, of_views in itertools.product(range(len(leaves(BATCHES[name]))), (False, True)):
        given = copy.deepcopy(BATCHES[name])
        retained = Retained(given)
        for _ in range(2):
            assert not retained.is_changed()
            views = retained.views()
            assert repr(views) == repr(given) == repr(BATCHES[name])
            assert type(views) is type(given)
        leaves(views if of_views else given)[place].mul_(2)
        assert retained.is_changed()


@pytest.mark.parametrize("name", BATCHES)
def test_what_is_done_to_its_tensors_is_not_in_the_next_ones(name: str) -> None:
    given = copy.deepcopy(BATCHES[name])
    retained = Retained(given)
    for tensor in leaves([given, retained.views()]):
        tensor.requires_grad_().sum().backward()  # type: ignore[no-untyped-call]
        tensor.data = torch.zeros(7)
    assert not retained.is_changed()
    views = retained.views()
    assert repr(views) == repr(BATCHES[name])
    assert all(one.grad is None for one in leaves(views))


def test_what_is_done_to_its_dicts_is_not_in_the_next_ones() -> None:
    given = {"input": {"x": ones(2)}}
    retained = Retained(given)
    for one in (given, retained.views()):
        del one["input"]["x"]
    assert list(retained.views()["input"]) == ["x"]


def test_a_batch_of_inference_mode_counts_as_changed() -> None:
    """Its tensors count no writes."""
    with torch.inference_mode():
        retained = Retained({"x": ones(2)})
        assert retained.is_changed()
        views = retained.views()
    assert torch.equal(views["x"], ones(2))
    assert retained.is_changed()


def test_a_write_in_inference_mode_is_seen() -> None:
    retained = Retained({"x": ones(2)})
    with torch.inference_mode():
        retained.views()["x"].mul_(2)
    assert retained.is_changed()
