"""Samples of several lengths from another host: equal to the bit, and no more bytes on the way than they have."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from meter import Meter
from separate import Hosts

import softs_fast as sf
from softs_fast.tensors import RaggedTensor

#: Elements of the longest sample: a slot has 800 KB.
LONGEST = 100_000
CONFIG = sf.BatchConfig(
    [
        sf.TensorSpec("n", (), "int64"),
        sf.TensorSpec("ids", (LONGEST,), "int64", ragged=True),
        sf.TensorSpec("states", (8, 3), "float32", ragged=True),
    ]
)
BATCH, N_BATCHES, N_SLOTS = 8, 20, 32
#: The number of the one sample that has the greatest lengths.
LARGE = 42


def tensors(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ragged tensors of a sample; those of some have no element."""
    n_ids, n_states = (LONGEST, 8) if number == LARGE else (number * 37 % 200, number % 4)
    return np.arange(n_ids) + number, np.full((n_states, 3), number, np.float32)


def generate(product_id: str, n: int, sequences: list[int]) -> dict[str, Any]:
    ids, states = zip(*map(tensors, sequences), strict=True)
    return {"n": np.array(sequences, np.int64), "ids": list(ids), "states": list(states)}


def check(batch: dict[str, Any]) -> int:
    """Check that the tensors of a batch are those of its numbers; return how many bytes their samples have."""
    n_bytes = 0
    for i, number in enumerate(batch["n"].tolist()):
        for name, expected in zip(("ids", "states"), tensors(number), strict=True):
            ragged = batch[name]
            assert isinstance(ragged, RaggedTensor)
            assert np.array_equal(ragged.unbind()[i].numpy(), expected)
            n_bytes += 8 + expected.nbytes
        n_bytes += 8
    return n_bytes


def test_samples_cross_with_the_bytes_that_they_have(apart: Hosts) -> None:
    ends = apart.endpoints
    supplier = sf.Supplier(
        batch_generator_fn=generate, product_ids=["p"], endpoint=ends["teachers"].backend, batch_config=CONFIG
    )
    loader = sf.SoftDataLoader(
        "p", ends["student"].frontend, CONFIG, num_slots=N_SLOTS, batch_size=BATCH, ordered=True
    )
    with Meter(apart.address) as meter:
        apart.ends["student"] = ["--connect", meter.address]
        apart.join()
        with supplier, loader:
            batches = list(islice(loader, N_BATCHES))
        numbers = [number for batch in batches for number in batch["n"].tolist()]
        assert numbers == list(range(BATCH * N_BATCHES))
        # Handshakes, and what was ordered ahead, have less than half of a slot.
        n_bytes = sum(map(check, batches))
        assert n_bytes <= meter.n_bytes < n_bytes + CONFIG.nbytes() // 2
