"""Recording and replay: what they cost, and how fast they are: `python -m benches.record FOLDER`.

The folder should be on the disk that is of interest; what is measured there is deleted again. Rates are of one broker and
one supplier in a process of its own, and of one loader here. A training that takes its time for each batch is imitated by
waiting (`--step-ms`), since no disk is as fast as a loader that does nothing. WebDataset and MosaicML Streaming read the same
samples where they are installed (`pip install webdataset mosaicml-streaming`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from benches.machine import describe_commit, describe_machine
from softs_fast import BatchConfig, Broker, EndpointConfig, ReplayLoader, SoftDataLoader, Supplier, TensorSpec
from softs_fast.record import Recording, to_webdataset
from softs_fast.record.columns import columns_of, rows_of
from softs_fast.record.folder import Folder
from softs_fast.record.manifest import ShardFacts, StreamFacts, read_manifest, shard_name, write_manifest
from softs_fast.record.shard_writer import ShardWriter
from softs_fast.records import replace

BATCH = 32
CONFIGS = {n: BatchConfig([TensorSpec("x", (n // 4,), "float32")]) for n in (600_000, 64)}


def supply(backend: str) -> None:
    """Serve samples of each size that are made already, until this process is ended."""
    suppliers = []
    for n, config in CONFIGS.items():
        sample = bytes(n)
        suppliers.append(
            Supplier(lambda product_id, made=sample: made, [str(n)], backend, batch_config=config)
        )
        suppliers[-1].start()
    for supplier in suppliers:
        supplier.wait()


@contextmanager
def market() -> Iterator[str]:
    """A broker here and suppliers elsewhere; its frontend."""
    with tempfile.TemporaryDirectory() as folder:
        frontend, backend = f"ipc://{folder}/f", f"ipc://{folder}/b"
        with Broker(EndpointConfig(frontend, backend)):
            process = multiprocessing.get_context("spawn").Process(target=supply, args=(backend,))
            process.start()
            try:
                yield frontend
            finally:
                process.terminate()
                process.join()


def rate_of(
    batches: Iterable[Any], n_batches: int, n_rows: int, step_s: float = 0.0, n_uncounted: int = 3
) -> float:
    """Samples per second of so many batches, after some that are not counted."""
    left = iter(batches)
    for _ in islice(left, n_uncounted):
        pass
    began = time.perf_counter()
    n = 0
    for _ in islice(left, n_batches):
        n += 1
        if step_s:
            time.sleep(step_s)
    return n * n_rows / (time.perf_counter() - began)


def webdataset(folder: Path, recording: Recording) -> Iterable[Any]:
    """Batches of WebDataset, of tars with the samples of a recording."""
    import webdataset

    files = [str(file) for file in to_webdataset(recording, folder)]
    return webdataset.WebDataset(files, shardshuffle=False).decode().to_tuple("x.npy").batched(BATCH)


def mosaicml_streaming(folder: Path, recording: Recording) -> Iterable[Any]:
    """Batches of MosaicML Streaming, of MDS files with the samples of a recording."""
    from streaming import MDSWriter, StreamingDataset

    (n,) = recording.config.specs[0].shape
    with MDSWriter(out=str(folder), columns={"x": f"ndarray:float32:{n}"}) as writer:
        for number in recording.numbers:
            writer.write({"x": recording.samples([int(number)])[0]["x"].numpy()})
    return DataLoader(StreamingDataset(local=str(folder), batch_size=BATCH, shuffle=False), BATCH)


def beside(folder: Path, n_replay: float) -> None:
    """Compare the rate of a replay with that of other readers of the same samples, each in its second pass."""
    for make in (webdataset, mosaicml_streaming):
        try:
            with Recording(folder) as recording:
                batches = make(folder.with_name(f"{folder.name}-{make.__name__}"), recording)
                n = len(recording) // BATCH
        except ImportError as error:
            print(f"  {make.__name__} is not measured: {error}")
            continue
        for _ in batches:
            pass
        n_other = rate_of(batches, n - 4, BATCH)
        print(f"  {make.__name__}: {n_other:,.0f}/s, replay {n_replay / n_other:.1f} times that")


def many_shards(folder: Path, n: int) -> float:
    """Seconds to open a recording of so many shards, all links to one file."""
    config = CONFIGS[64]
    stream = StreamFacts.of(
        config, recording="r", product="p", ordered=True, rank=0, world_size=1, shard_bytes=1,
        host="h", version="v", began_s=0.0,
    )  # fmt: skip
    folder.mkdir()
    writer = ShardWriter(folder, stream, 72)
    numbers = np.zeros(1, np.uint64)
    writer.append(rows_of(config, columns_of(config), {"x": torch.zeros(1, 16)}, numbers))
    writer.close()
    (one,) = read_manifest(Folder(folder)).shards
    shards = [one]
    for i in range(1, n):
        (folder / shard_name(i)).hardlink_to(folder / shard_name(0))
        shards.append(replace(one, file=shard_name(i), first=i, last=i))
    assert isinstance(shards[0], ShardFacts)
    write_manifest(folder, replace(stream, shards=tuple(shards)))
    began = time.perf_counter()
    with Recording(folder) as recording:
        assert len(recording) == n
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-ms", type=float, default=80.0, help="milliseconds of a step of the training")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    step_s, large, small = arguments.step_ms / 1000, 600_000, 64

    def loader(frontend: str, size: int, **options: Any) -> SoftDataLoader:
        return SoftDataLoader(
            str(size), frontend, CONFIGS[size], batch_size=BATCH, num_slots=3 * BATCH, ordered=True, **options
        )

    try:
        print(describe_machine(), describe_commit(), sep="\n")
        with market() as frontend:
            rates = {}
            for how in ("plain", "recorded", "plain", "recorded"):
                target = folder / f"large-{len(rates)}"
                options = {"record": target} if how == "recorded" else {}
                with loader(frontend, large, **options) as live:
                    # The first ones are copied into memory that gets its pages with them.
                    rates.setdefault(how, []).append(rate_of(live, 60, BATCH, step_s, n_uncounted=20))
                shutil.rmtree(target, ignore_errors=True)
            plain, recorded = (max(rates[how]) for how in ("plain", "recorded"))
            print(
                f"600 KB, steps of {arguments.step_ms:g} ms: {plain:,.0f}/s, recorded {recorded:,.0f}/s, "
                f"{100 * (1 - recorded / plain):.1f} % less"
            )
            with loader(frontend, large, record=folder / "large") as live:
                began = time.perf_counter()
                for _ in islice(live, 60):
                    pass
            took_s = time.perf_counter() - began
            print(f"600 KB, no steps, to the end of the disk: {60 * BATCH / took_s:,.0f}/s")
            for size, n_batches in ((large, 200), (small, 20_000)):
                if size == small:
                    with loader(frontend, small, record=folder / "small") as live:
                        print(f"64 B, recorded: {rate_of(live, 30_000, BATCH):,.0f}/s")
                    with loader(frontend, small, record=folder / "few") as live:
                        for _ in islice(live, 1000):
                            pass
                with loader(frontend, size, zero_copy=True) as live:
                    n_zero = rate_of(live, n_batches, BATCH)
                with ReplayLoader(
                    folder / ("large" if size == large else "small"), batch_size=BATCH
                ) as replay:
                    for _ in replay:  # Pages are in the cache after this.
                        pass
                    n_replay = rate_of(replay, n_batches, BATCH)
                print(
                    f"{size} B: live without a copy {n_zero:,.0f}/s, replay {n_replay:,.0f}/s, {n_replay / n_zero:.2f} of it"
                )
                beside(folder / ("large" if size == large else "few"), n_replay)
        n_bytes = sum(one.stat().st_size for one in (folder / "small").iterdir())
        with Recording(folder / "small") as recording:
            print(f"64 B on disk: {n_bytes / len(recording) / small:.3f} times the payload")
        print(f"10,000 shards opened in {many_shards(folder / 'many', 10_000):.2f} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
