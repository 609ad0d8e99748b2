"""Ragged tensors between our peers, through our broker and that of softs."""

import pytest
import torch

import softs_fast as sf
from fleet import Fleet

CONFIG = sf.BatchConfig([sf.TensorSpec("ids", (64,), "int32", ragged=True), sf.TensorSpec("y", (), "int64")])
MEDIUMS = {"shm": sf.ShmMedium, "tcp": sf.TCPMedium}


def generate(product_id: str) -> dict[str, torch.Tensor]:
    return {"ids": torch.arange(5, dtype=torch.int32), "y": torch.tensor(5)}


@pytest.mark.parametrize("broker", ["softs_fast", "softs-0.1.2"])
@pytest.mark.parametrize("fleet", MEDIUMS, indirect=True)
def test_samples_of_varying_length(fleet: Fleet, broker: str) -> None:
    fleet.peer("broker", broker)
    medium = MEDIUMS[fleet.medium]
    with (
        sf.Supplier(generate, ["p1"], fleet.backend, medium, batch_config=CONFIG),
        sf.SoftDataLoader("p1", fleet.frontend, CONFIG, medium, batch_size=4) as loader,
    ):
        batch = next(iter(loader))
    assert batch["ids"].lengths.tolist() == batch["y"].tolist() == [5] * 4
    assert batch["ids"].values.tolist() == [*range(5)] * 4
