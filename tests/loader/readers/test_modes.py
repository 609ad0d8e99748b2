"""Modes of torch that are in force while a batch is made do not reach the training that gets it."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import softs_fast as sf
from softs_fast.codecs import topk_kl

#: Batches are large enough to be begun ahead.
PLAIN = sf.BatchConfig([sf.TensorSpec("x", (40_000,), "float32"), sf.TensorSpec("h", (2,), "bfloat16")])
CODED = sf.BatchConfig(
    [
        sf.TensorSpec("x", (3,), "float32"),
        sf.TensorSpec("cast", (3,), "float32", codec="cast:bfloat16"),
        sf.TensorSpec("top", (2, 5), "float32", codec="topk:2"),
        sf.TensorSpec("ids", (4,), "int64", ragged=True),
    ]
)
B = 2
KINDS = {
    "copied": (CODED, {}),
    "plain": (PLAIN, {}),
    "threads": (CODED, {"num_workers": 1}),
    "samples": (CODED, {"batch_size": None}),
    "plain samples": (PLAIN, {"batch_size": None}),
    "zero copy": (PLAIN, {"zero_copy": True}),
    "zero copy, samples": (PLAIN, {"zero_copy": True, "batch_size": None}),
    "own collate_fn": (PLAIN, {"collate_fn": torch.utils.data.default_collate}),
    "device": (CODED, {"device": "meta"}),
    "own collate_fn, device": (PLAIN, {"collate_fn": torch.utils.data.default_collate, "device": "meta"}),
    "processes": (CODED, {"num_workers": 2, "multiprocessing_context": "fork"}),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.parametrize("kind", KINDS),
]


def generate(product_id: str, n: int) -> dict[str, Any]:
    if product_id == "plain":
        return {"x": torch.ones(n, 40_000), "h": torch.ones(n, 2, dtype=torch.bfloat16)}
    ids = [torch.tensor([7] * (1 + i % 2)) for i in range(n)]
    return {"x": torch.ones(n, 3), "cast": torch.ones(n, 3), "top": torch.ones(n, 2, 5), "ids": ids}


@contextlib.contextmanager
def loader_of(kind: str, frontend: str, backend: str) -> Iterator[sf.SoftDataLoader]:
    config, options = KINDS[kind]
    product = "plain" if config is PLAIN else "coded"
    supplier = sf.Supplier(
        batch_generator_fn=generate, product_ids=[product], endpoint=backend, batch_config=config
    )
    options = {"num_slots": 16, "batch_size": B, "steps_per_epoch": 3, **options}
    with (
        sf.Broker(sf.EndpointConfig(frontend, backend)),
        supplier,
        sf.SoftDataLoader(product, frontend, config, **options) as loader,
    ):
        yield loader


def tensors_of(batch: dict[str, Any]) -> list[torch.Tensor]:
    return [
        tensor for value in batch.values() for tensor in (value if isinstance(value, tuple) else (value,))
    ]


def test_batches_are_trained_on_after_some_under_inference_mode(
    kind: str, frontend: str, backend: str
) -> None:
    weight = torch.nn.Parameter(torch.ones(()))
    with loader_of(kind, frontend, backend) as loader:
        with torch.inference_mode():
            for _ in loader:
                time.sleep(0.002)  # the next batch is begun meanwhile
        for batch in loader:
            assert not any(tensor.is_inference() for tensor in tensors_of(batch))
            if batch["x"].is_cpu:
                (batch["x"] * weight).sum().backward()


def test_batches_are_on_the_host_whatever_the_default_device(kind: str, frontend: str, backend: str) -> None:
    wanted = torch.device(KINDS[kind][1].get("device", "cpu"))
    with loader_of(kind, frontend, backend) as loader, torch.device("meta"):
        batch = next(iter(loader))
    tensors = tensors_of(batch)
    assert {tensor.device for tensor in tensors} == {wanted}
    if wanted.type == "cpu":
        assert (batch["x"] == 1).all()
        if "top" in batch and batch["x"].ndim == 2:
            assert topk_kl(torch.ones(B, 2, 5), batch["top"]).abs().max() < 1e-6
