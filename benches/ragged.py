"""Ragged against padded tensors, through one broker and one supplier: `python -m benches.ragged`; with `--linked` the
supplier has a broker of its own, which a link joins, plain and on loopback.

Both sides move the same texts, of 300 tokens on average and 2048 at most: one as a ragged tensor, the other padded to
the greatest length, with the length beside it. Runs alternate, and the order of the sides is reversed from round to
round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benches.machine import describe_commit, describe_machine
from softs_fast import (
    BatchConfig,
    Broker,
    EndpointConfig,
    HostLink,
    ShmMedium,
    SoftDataLoader,
    Supplier,
    TensorSpec,
)

LONGEST, MEAN, SIGMA = 2048, 300, 0.8
BATCH = 64
#: What a token has: its number, or a hidden state.
CASES: dict[str, tuple[tuple[int, ...], str]] = {
    "ids, int32 [length]": ((), "int32"),
    "states, float16 [length, 64]": ((64,), "float16"),
}
SIDES = ("padded", "ragged")


def lengths_of(n: int) -> Any:
    """Lengths of texts: log-normal, from 1 to LONGEST."""
    drawn = np.random.default_rng(0).lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, n)
    return drawn.astype(np.int64).clip(1, LONGEST)


def config_of(case: str, side: str) -> BatchConfig:
    """The samples of a side."""
    rest, dtype = CASES[case]
    tokens = TensorSpec("tokens", (LONGEST, *rest), dtype, ragged=side == "ragged")
    return BatchConfig([tokens] if side == "ragged" else [tokens, TensorSpec("length", (), "int64")])


def generator_of(case: str, side: str) -> Any:
    """A function that returns prepared texts, as a tokenizer or a teacher would leave them."""
    rest, dtype = CASES[case]
    lengths = lengths_of(BATCH)
    texts = [np.full((length, *rest), i, dtype) for i, length in enumerate(lengths)]
    padded = np.zeros((BATCH, LONGEST, *rest), dtype)
    for row, text in zip(padded, texts, strict=True):
        row[: len(text)] = text

    def generate(product_id: str, n: int) -> dict[str, Any]:
        if side == "ragged":
            return {"tokens": texts[:n]}
        return {"tokens": padded[:n], "length": lengths[:n]}

    return generate


def supply(case: str, backend: str) -> None:
    """Serve both sides, each with a supplier, until this process is ended."""
    suppliers = [
        Supplier(
            batch_generator_fn=generator_of(case, side),
            product_ids=[side],
            endpoint=backend,
            batch_config=config_of(case, side),
            max_batch=BATCH,
        )
        for side in SIDES
    ]
    for supplier in suppliers:
        supplier.start()
    for supplier in suppliers:
        supplier.wait()


def rate_of(loader: SoftDataLoader, seconds: float) -> float:
    """Return samples per second; every tensor of a batch is read."""
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    n, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        tokens = next(batches)["tokens"]
        (tokens if not isinstance(tokens, tuple) else tokens[0]).view(-1)[::1024].sum()
        n += BATCH
    return n / elapsed


@contextmanager
def market(is_linked: bool) -> Iterator[tuple[str, str]]:
    """Serve as one broker, or as two that a link joins; yield the frontend of students and the backend of teachers."""
    with tempfile.TemporaryDirectory(prefix="sf") as folder:
        here = EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
        with Broker(here):
            if not is_linked:
                yield here.frontend, here.backend
                return
            there = EndpointConfig(f"ipc://{folder}/tf", f"ipc://{folder}/tb")
            with (
                Broker(there),
                HostLink(there, listen="127.0.0.1:0") as far,
                HostLink(here, connect=far.address or ""),
            ):
                yield here.frontend, there.backend


def measure(case: str, n_rounds: int, seconds: float, *, is_linked: bool) -> dict[str, list[float]]:
    """Return the rates of both sides, samples per second, one per round."""
    with market(is_linked) as (frontend, backend):
        teacher = multiprocessing.get_context("spawn").Process(
            target=supply, args=(case, backend), daemon=True
        )
        teacher.start()
        loaders = {
            side: SoftDataLoader(
                side, frontend, config_of(case, side), ShmMedium, num_slots=4 * BATCH, batch_size=BATCH
            )
            for side in SIDES
        }
        rates: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(n_rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                rates[side].append(rate_of(loaders[side], seconds))
        for loader in loaders.values():
            loader.soft_dataset.close()
        teacher.terminate()
        teacher.join()
    return rates


def main() -> None:
    """Measure all cases and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--linked", action="store_true")
    options = parser.parse_args()
    print(describe_machine(), describe_commit())
    lengths = lengths_of(BATCH)
    print(f"{BATCH} texts, mean {lengths.mean():.0f}, from {lengths.min()} to {lengths.max()} tokens")
    for case in CASES:
        rates = measure(case, options.rounds, options.seconds, is_linked=options.linked)
        medians = {side: statistics.median(rates[side]) for side in SIDES}
        ratios = [ragged / padded for padded, ragged in zip(rates["padded"], rates["ragged"], strict=True)]
        shares = ", ".join(f"{side} {rate:,.0f} samples/s" for side, rate in medians.items())
        print(
            f"{case}: {shares}; ratio of paired rounds {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
