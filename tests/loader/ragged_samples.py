"""Samples of several lengths, what a batch of them is, and loaders of them."""

import random
from typing import Any

import torch

from softs_fast import BatchConfig, ShmMedium, SoftDataLoader, TensorSpec
from softs_fast.tensors import RaggedTensor

CONFIG = BatchConfig(
    [
        TensorSpec("y", (), "int64"),
        TensorSpec("ids", (600,), "int32", ragged=True),
        TensorSpec("hidden", (40,), "float32", codec="cast:bfloat16"),
        TensorSpec("states", (90, 4), "bfloat16", ragged=True),
        TensorSpec("x", (2, 5), "float16"),
    ]
)


def sample(number: int) -> dict[str, torch.Tensor]:
    chosen = random.Random(number)
    return {
        "y": torch.tensor(number),
        "ids": torch.full((chosen.choice([0, 600, chosen.randint(1, 599)]),), number, dtype=torch.int32),
        "hidden": torch.full((40,), float(number)).bfloat16().float(),
        "states": torch.full((chosen.choice([0, 90, chosen.randint(1, 89)]), 4), float(number)).bfloat16(),
        "x": torch.full((2, 5), number % 1000).half(),
    }


def many(numbers: list[int]) -> dict[str, Any]:
    """A batch as a function makes it: its ragged tensors in two of the forms that they may have."""
    samples = [sample(number) for number in numbers]
    batch: dict[str, Any] = {name: [each[name] for each in samples] for name in CONFIG.tensor_names}
    fixed = {name: torch.stack(batch[name]) for name in ("y", "hidden", "x")}
    return {**batch, **fixed, "states": RaggedTensor.from_samples(batch["states"])}


def check(batch: dict[str, Any], n_rows: int) -> list[int]:
    """A batch is what was sent; return the numbers of its samples."""
    assert list(batch) == CONFIG.tensor_names
    numbers: list[int] = batch["y"].tolist()
    assert len(numbers) == n_rows
    wanted = [sample(number) for number in numbers]
    for name in ("ids", "states"):
        ragged = batch[name]
        assert isinstance(ragged, RaggedTensor)
        assert ragged.values.dtype is CONFIG.get_spec(name).torch_dtype
        assert ragged.lengths.tolist() == [len(each[name]) for each in wanted]
        assert ragged.values.untyped_storage().nbytes() == ragged.values.nbytes
        for row, each in zip(ragged.unbind(), wanted, strict=True):
            assert torch.equal(row, each[name])
    for name in ("hidden", "x"):
        assert torch.equal(batch[name], torch.stack([each[name] for each in wanted]))
    return numbers


def loader_of(endpoint: str, medium_cls: Any = ShmMedium, **options: Any) -> SoftDataLoader:
    options = {"num_slots": 8, "batch_size": 4, "ordered": True, **options}
    return SoftDataLoader("m", endpoint, CONFIG, medium_cls, **options)
