"""All-reduce by `LinkStrategy`, with TLS and without, beside gloo, in alternating rounds of one run.

`python -m benches.links` prints the table of docs/collectives.md. A round's time is that of its slowest rank.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from softs_fast.collectives import LinkStrategy, Strategy, TorchStrategy
from softs_fast.trust import write_token

#: Bytes of the tensor, and rounds.
SIZES = {4 << 10: 100, 1 << 20: 30, 64 << 20: 7}
RANKS = (2, 4)
NAMES = ("gloo", "link", "link, TLS")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    options = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"| ranks, size | {' | '.join(NAMES)} | {' | '.join(f'{name} / gloo' for name in NAMES[1:])} |")
    print(f"|{'---|' * 2 * len(NAMES)}")
    for size in options.ranks:
        for n_bytes, times in _run(size).items():
            medians = [statistics.median(times[name]) * 1e3 for name in NAMES]
            ratios = [
                statistics.median(
                    mine / theirs for mine, theirs in zip(times[name], times["gloo"], strict=True)
                )
                for name in NAMES[1:]
            ]
            label = f"{n_bytes >> 20} MiB" if n_bytes >= 1 << 20 else f"{n_bytes >> 10} KiB"
            cells = [*(f"{median:.2f} ms" for median in medians), *(f"{ratio:.1f}" for ratio in ratios)]
            print(f"| {size}, {label} | {' | '.join(cells)} |", flush=True)
    print(f"load after: {os.getloadavg()[0]:.1f}")


def _run(size: int) -> dict[int, dict[str, list[float]]]:
    """Return seconds by bytes and name, round by round, of the slowest rank."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        write_token(Path(folder, "token"))
        ranks = [context.Process(target=_rank, args=(rank, size, folder, there)) for rank in range(size)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            raise RuntimeError(f"ranks ended with {[rank.exitcode for rank in ranks]}")
        found: dict[int, dict[str, list[float]]] = here.recv()
        return found


def _rank(rank: int, size: int, folder: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    token = Path(folder, "token")
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=size)
    contenders: dict[str, Strategy] = {
        "gloo": TorchStrategy(dist.group.WORLD),
        "link": LinkStrategy().init(rank, size, f"{folder}/link"),
        "link, TLS": LinkStrategy(token_file=token).init(rank, size, f"{folder}/tls"),
    }
    found = {n_bytes: _alternate(contenders, n_bytes, rounds) for n_bytes, rounds in SIZES.items()}
    for strategy in contenders.values():
        strategy.close()
    dist.destroy_process_group()
    if rank == 0:
        pipe.send(found)


def _alternate(contenders: dict[str, Strategy], n_bytes: int, rounds: int) -> dict[str, list[float]]:
    gloo = contenders["gloo"]
    tensor = torch.zeros(n_bytes // 4)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 2):
        for name, strategy in contenders.items():
            tensor.fill_(float(number))
            gloo.barrier()
            begun_s = time.perf_counter()
            strategy.all_reduce(tensor, "mean")
            slowest = torch.tensor([time.perf_counter() - begun_s], dtype=torch.float64)
            gloo.all_reduce(slowest, "max")
            if number >= 2:
                times[name].append(float(slowest))
    return times


if __name__ == "__main__":
    main()
