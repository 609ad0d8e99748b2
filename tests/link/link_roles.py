"""Processes of two hosts that links join: teachers, a student that checks each sample, and links; forks of zygote.py."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import softs_fast as sf
from role import say, wait_for_end
from softs_fast.trust import TlsFiles

#: int64 of a sample: 12 KB.
WIDTH = 1_500
BATCH = 8
CONFIG = sf.BatchConfig([sf.TensorSpec("n", (), "int64"), sf.TensorSpec("x", (WIDTH,), "int64")])


def contents(numbers: np.ndarray) -> np.ndarray:
    """Return the x of samples with these numbers, [n, WIDTH]; no two have an element in common."""
    return numbers[:, None] * WIDTH + np.arange(WIDTH)


def endpoints_in(folder: str) -> sf.EndpointConfig:
    """Return where the broker of a host is."""
    return sf.EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")


@contextmanager
def broker(options: dict[str, Any]) -> Iterator[sf.EndpointConfig]:
    """Serve as the broker of a host."""
    endpoints = endpoints_in(options["folder"])
    with sf.Broker(endpoints):
        yield endpoints


def run_teachers(options: dict[str, Any]) -> None:
    """Is the broker of a host, and a supplier of numbered samples."""

    def generate(product_id: str, n: int, sequences: list[int]) -> dict[str, np.ndarray]:
        numbers = np.array(sequences, np.int64)
        return {"n": numbers, "x": contents(numbers)}

    with (
        broker(options) as endpoints,
        sf.Supplier(
            batch_generator_fn=generate, product_ids=["p"], endpoint=endpoints.backend, batch_config=CONFIG
        ),
    ):
        say(event="ready")
        wait_for_end()


def run_student(options: dict[str, Any]) -> None:
    """Is the broker of a host, and a loader; obeys "take N", where N are batches, each of which it checks."""
    with (
        broker(options) as endpoints,
        sf.SoftDataLoader(
            # It waits out the longest cut.
            "p",
            endpoints.frontend,
            CONFIG,
            num_slots=64,
            batch_size=BATCH,
            ordered=True,
            request_timeout=None,
        ) as loader,
    ):
        batches, expected = iter(loader), np.arange(BATCH)
        say(event="ready")
        for line in sys.stdin:
            for number in range(int(line.split()[1])):
                batch = next(batches)
                assert np.array_equal(batch["n"], expected), f"{batch['n']}, not {expected}"
                assert np.array_equal(batch["x"], contents(expected)), f"of {expected}: {batch['x']}"
                expected = expected + BATCH
                if number == 0:
                    say(event="began")
            say(event="took", n=int(expected[0]))


def run_worker(options: dict[str, Any]) -> None:
    """Make samples of the model that a student wants: their numbers, and the model's value."""

    def generate(
        model_id: str, model_cfg: dict[str, Any], n: int, sequences: list[int]
    ) -> dict[str, np.ndarray]:
        values = np.full((n, WIDTH), model_cfg["value"], np.int64)
        return {"n": np.array(sequences, np.int64), "x": values}

    with sf.Worker(
        batch_generator_fn=generate,
        backend_endpoint=options["backend"],
        control_pub_endpoint=options["control_pub"],
        batch_config=CONFIG,
    ) as worker:
        say(event="ready")
        worker.wait()


class Told(logging.Handler):
    """Reports the log of a link."""

    def emit(self, record: logging.LogRecord) -> None:
        say(event="log", text=record.getMessage())


def run_link(options: dict[str, Any]) -> None:
    """Joins the broker of a host with another host."""
    logger = logging.getLogger("softs_fast.link")
    logger.addHandler(Told())
    logger.setLevel(logging.INFO)
    files = TlsFiles(token_file=Path(options["token"]))
    with sf.HostLink(endpoints_in(options["folder"]), credentials=files, **options["ends"]):
        say(event="ready")
        wait_for_end()


def run(role: str, options: dict[str, Any]) -> None:
    """Do what a role does."""
    {"teachers": run_teachers, "student": run_student, "link": run_link, "worker": run_worker}[role](options)
