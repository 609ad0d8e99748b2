"""Samples that hold their model and rank, and show whether they are whole."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from waiting import eventually

from softs_fast import BatchConfig, GeneratorFailed, SampleRef, StudentClient, TensorSpec

CONFIG = BatchConfig(
    [
        TensorSpec("model", (), "int64"),
        TensorSpec("rank", (), "int64"),
        TensorSpec("sequence", (), "int64"),
        TensorSpec("filling", (64,), "uint8"),
    ]
)


def endpoints(folder: Path) -> tuple[str, str, str, str]:
    """Frontend, backend, control and control_pub in a folder."""
    frontend, backend, control, control_pub = (f"ipc://{folder}/{name}" for name in ("f", "b", "c", "p"))
    return frontend, backend, control, control_pub


def stamped(model_id: str, model_cfg: dict[str, Any] | None, sequence: int, rank: int) -> dict[str, Any]:
    """A sample of the model with this number: all of it follows from the arguments."""
    model = int(model_id)
    return {"model": model, "rank": rank, "sequence": sequence, "filling": _filling(model, rank, sequence)}


def check(sample: dict[str, Any], rank: int = 0) -> int:
    """Check that a sample is whole and this rank's; the number of its model."""
    model, of_rank, sequence = (int(sample[name]) for name in ("model", "rank", "sequence"))
    assert of_rank == rank
    assert sample["filling"].tolist() == _filling(model, rank, sequence).tolist(), "torn"
    return model


def take(client: StudentClient) -> SampleRef:
    """Wait for a sample."""
    sample = client.request_sample(timeout_ms=30_000)
    assert sample is not None, client.diagnose(30.0)
    return sample


def failure(client: StudentClient) -> str:
    """Wait until an order has failed for good; the text of the error."""

    def has_failed() -> bool:
        # A client has no thread: its orders go again while it is asked for samples.
        return client.request_sample(timeout_ms=100) is None and isinstance(
            client.diagnose(), GeneratorFailed
        )

    eventually(has_failed, lambda: client.diagnose())
    return str(client.diagnose())


def next_model(client: StudentClient) -> int:
    """Take a sample, check it, give it back; the number of its model."""
    sample = take(client)
    model = check(sample.tensors(), client.student_rank)
    client.release_slot(sample.slot_id)
    return model


def _filling(*stamp: int) -> Any:
    return np.frombuffer(hashlib.blake2b(repr(stamp).encode(), digest_size=64).digest(), np.uint8)
