"""Two hosts on one machine: each has a broker at paths of its own, and a link between both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from token_files import token_file

import softs_fast as sf
from softs_fast.trust import TlsFiles

CONFIG = sf.BatchConfig([sf.TensorSpec("n", (), "int64"), sf.TensorSpec("x", (100,), "int64")])


def endpoints_of(folder: Path, host: str) -> sf.EndpointConfig:
    """Where the broker of a host is."""
    return sf.EndpointConfig(f"ipc://{folder}/{host}f", f"ipc://{folder}/{host}b")


def token(folder: Path, letter: str = "a") -> TlsFiles:
    """A token file, as credentials."""
    pytest.importorskip("cryptography", reason="makes certificates")
    return TlsFiles(token_file=token_file(folder / f"token_{letter}", letter))


@dataclass
class Joined:
    """Where the brokers of a student's host and of a teachers' host are, and the links of both."""

    student: sf.EndpointConfig
    teachers: sf.EndpointConfig
    student_link: sf.HostLink
    teachers_link: sf.HostLink


@contextlib.contextmanager
def joined(folder: Path, both: tuple[TlsFiles, TlsFiles] | None = None) -> Iterator[Joined]:
    """Two brokers, joined by a token file, or by the credentials of the student's and of the teachers' host."""
    student, teachers = endpoints_of(folder, "s"), endpoints_of(folder, "t")
    ours, theirs = both or (token(folder),) * 2
    with (
        sf.Broker(student),
        sf.Broker(teachers),
        sf.HostLink(teachers, listen="127.0.0.1:0", credentials=theirs) as there,
    ):
        assert there.address is not None
        with sf.HostLink(student, connect=[there.address], credentials=ours) as here:
            yield Joined(student, teachers, here, there)


def numbered_supplier(backend: str, maker: int = 0, product: str = "p") -> sf.Supplier:
    """A supplier of samples by which one sees their number, and which supplier has made them."""

    def generate(product_id: str, n: int, sequences: list[int]) -> dict[str, np.ndarray]:
        numbers = np.array(sequences, np.int64)
        return {"n": numbers, "x": np.repeat(numbers * 10 + maker, 100).reshape(n, 100)}

    return sf.Supplier(
        batch_generator_fn=generate, product_ids=[product], endpoint=backend, batch_config=CONFIG
    )
