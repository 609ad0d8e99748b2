"""What is written to slots and read from them, and slots with samples that no encoder wrote."""

import itertools
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ragged_samples import CONFIG, check, loader_of, many, sample
from served import served

from softs_fast import (
    BatchConfig,
    Broker,
    Client,
    ConfigError,
    EndpointConfig,
    FilesystemMedium,
    GeneratorFailed,
    ShmMedium,
    SoftDataLoader,
    SoftIterableDataset,
    Supplier,
    TCPMedium,
    TensorSpec,
    WireError,
)
from softs_fast.loader.readers import batch_memory

TEXTS = BatchConfig([TensorSpec("ids", (2048,), "int32", ragged=True), TensorSpec("y", (), "int64")])


def texts(lengths: list[int]) -> list[bytes]:
    """Samples without a byte of poison."""
    return [
        TEXTS.encode(ids=torch.full((length,), 1, dtype=torch.int32), y=torch.tensor(1)) for length in lengths
    ]


LENGTHS = np.random.default_rng(1).integers(150, 500, 16).tolist()


@pytest.mark.parametrize("form", ["list", "bytes"])
@pytest.mark.parametrize("in_file", [False, True])
def test_bytes_written_to_and_read_from_slots_are_those_of_the_tokens(
    in_file: bool, form: str, short_path: Path, frontend: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    medium_cls: Any = FilesystemMedium if in_file else ShmMedium
    address = str(short_path / "slots") if in_file else None
    poison = 0xEE

    def generate(product_id: str, n: int, sequences: tuple[int, ...]) -> Any:
        lengths = [LENGTHS[i % 16] for i in sequences]
        if form == "bytes":
            return texts(lengths)
        return {"ids": [np.ones(length, np.int32) for length in lengths], "y": np.ones(n, np.int64)}

    aligned = batch_memory._aligned
    blocks = []

    def poisoned(n_bytes: int) -> Any:
        blocks.append(aligned(n_bytes))
        blocks[-1][:] = poison
        return blocks[-1]

    monkeypatch.setattr(batch_memory, "_aligned", poisoned)
    with (
        Broker(EndpointConfig(frontend, backend)),
        Supplier(
            batch_generator_fn=generate,
            product_ids=["m"],
            endpoint=backend,
            medium_cls=medium_cls,
            batch_config=TEXTS,
        ),
        Client(frontend, medium_cls, TEXTS.nbytes(), 16, address, ordered=True) as client,
    ):
        size, stride = TEXTS.nbytes(), client.medium.slot_stride  # type: ignore[attr-defined]
        for slot in range(16):
            assert client.medium.write(slot * stride, bytes([poison]) * size)
        taken = [client.request_sample("m", 10_000) for _ in range(16)]
        slots = [np.frombuffer(client.medium.read(slot), np.uint8) for slot in taken if slot is not None]
        n_written = sum(int((slot != poison).sum()) for slot in slots)
        assert 4 * sum(LENGTHS) <= n_written <= 1.05 * 4 * sum(LENGTHS)
        for slot in taken:
            assert slot is not None
            client.release_slot(slot)
        memory = batch_memory.BatchMemory(TEXTS, 16, False)
        assert client.gather("m", 16, 0, memory.lend(), 10_000) == 16
        n_read = sum(int((block != poison).sum()) for block in blocks) + 8 * 16
        batch = memory.take()
        assert batch["ids"].lengths.tolist() == LENGTHS
        assert 4 * sum(LENGTHS) <= n_read <= 1.05 * 4 * sum(LENGTHS)


@pytest.mark.parametrize("medium_cls", [ShmMedium, TCPMedium])
@pytest.mark.parametrize(("batch_size", "num_workers"), [(2, 0), (2, 2), (None, 0)])
@pytest.mark.parametrize("length", [601, -1, 2**62])
def test_a_length_that_no_sample_has(
    medium_cls: Any, batch_size: int | None, num_workers: int, length: int, frontend: str, backend: str
) -> None:
    good = CONFIG.encode(**sample(1)).ljust(CONFIG.nbytes(), b"\0")
    bad = struct.pack("=q", length) + good[8:]
    supply = itertools.chain([good, good, bad], itertools.repeat(good))
    with served(frontend, backend, lambda product_id: next(supply), ["m"], medium_cls, CONFIG.nbytes()):
        loader = SoftDataLoader(
            "m", frontend, CONFIG, medium_cls, num_slots=4, batch_size=batch_size, num_workers=num_workers
        )
        batches = iter(loader)
        for _ in range(2 if batch_size is None else 1):
            next(batches)
        with pytest.raises(WireError, match=f'tensor "ids" has length {length}, need 0 to 600'):
            next(batches)
        # Its slot has been released, and all others too.
        for batch in itertools.islice(batches, 6):
            assert torch.as_tensor(batch["y"]).flatten().unique().tolist() == [1]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_ordered_stream_goes_on_behind_a_bad_sample(num_workers: int, frontend: str, backend: str) -> None:
    bad = {9, 10, 30}

    def generate(product_id: str, sequence: int) -> bytes:
        data = CONFIG.encode(**sample(sequence)).ljust(CONFIG.nbytes(), b"\0")
        if sequence in bad:
            bad.remove(sequence)
            return struct.pack("=q", -1) + data[8:]
        return data

    with served(frontend, backend, generate, ["m"], ShmMedium, CONFIG.nbytes()):
        loader = loader_of(frontend, num_workers=num_workers)
        batches = iter(loader)
        seen: list[int] = []
        n_refused = 0
        while len(seen) < 48:
            try:
                seen += check(next(batches), 4)
            except WireError:
                n_refused += 1
        assert seen == list(range(48))
        assert 1 <= n_refused <= 3


def test_slots_of_any_bytes(frontend: str, backend: str) -> None:
    chosen = random.Random(7)

    def generate(product_id: str) -> bytes:
        lengths = [
            chosen.choice([chosen.randint(-2, most + 2), chosen.getrandbits(64) - 2**63])
            for most in (600, 90)
        ]
        return struct.pack("=qq", *lengths) + chosen.randbytes(CONFIG.nbytes() - 16)

    n_batches, n_refused = 0, 0
    with served(frontend, backend, generate, ["m"], ShmMedium, CONFIG.nbytes()):
        batches = iter(SoftDataLoader("m", frontend, CONFIG, ShmMedium, num_slots=8, batch_size=2))
        while min(n_batches, n_refused) < 20:
            try:
                batch = next(batches)
            except WireError:
                n_refused += 1
                continue
            n_batches += 1
            for name in ("ids", "states"):
                lengths = batch[name].lengths
                assert lengths.min() >= 0
                assert lengths.max() <= CONFIG.get_spec(name).shape[0]
                assert len(batch[name].values) == lengths.sum()
        del batches


def test_what_a_function_may_not_return(frontend: str, backend: str) -> None:
    good = many([1])
    for bad, text in (
        (
            {**good, "ids": [torch.zeros(601, dtype=torch.int32)]},
            'tensor "ids" has length 601, need 0 to 600',
        ),
        ([struct.pack("=qq", 700, 1)], 'returned 16 bytes that are no sample: tensor "ids" has length 700'),
        ([CONFIG.encode(**sample(5))[:-1]], "ends after"),
        (
            CONFIG.encode(**sample(5)),
            "returned bytes, need a mapping of tensors, or a list of 1 byte strings",
        ),
        ([], "returned 0 samples, need 1"),
    ):
        with (
            Broker(EndpointConfig(frontend, backend)),
            Supplier(
                batch_generator_fn=lambda product_id, n, bad=bad: bad,
                product_ids=["m"],
                endpoint=backend,
                batch_config=CONFIG,
                max_batch=1,
            ),
        ):
            data = SoftIterableDataset("m", frontend, CONFIG, ShmMedium, num_slots=1)
            with pytest.raises(GeneratorFailed, match=text):
                next(iter(data))


def test_a_supplier_without_the_config_needs_whole_slots(frontend: str, backend: str) -> None:
    short = CONFIG.encode(**sample(5))
    with served(frontend, backend, lambda product_id: short, ["m"], ShmMedium, CONFIG.nbytes()):
        data = SoftIterableDataset("m", frontend, CONFIG, ShmMedium, num_slots=1)
        with pytest.raises(
            GeneratorFailed, match=f"returned {len(short)} bytes, need slot_size={CONFIG.nbytes()}"
        ):
            next(iter(data))


def test_memory_for_ragged_tensors_must_fit() -> None:
    with Client("ipc:///nowhere", ShmMedium, CONFIG.nbytes(), 2) as client:
        memory = batch_memory.BatchMemory(CONFIG, 3, False)
        *fixed, (layout, offsets, values) = memory.lend()
        for ragged in (
            (layout, offsets[:, :-1].copy(), values),
            (layout, offsets, values[:1]),
            (layout, offsets, [values[0][:-1], values[1]]),
        ):
            with pytest.raises(
                ConfigError, match="the memory for tensors of varying length is not that of 3 rows"
            ):
                client.gather("m", 3, 0, [*fixed, ragged], 0)
