"""Collectives inside one host: ours, gloo's, and DeepSpeed's schedule, in alternating rounds of one run.

`python -m benches.collectives` prints the tables of docs/collectives.md and writes a file into
benches/results/collectives.

Before every call each rank writes its gradients, as a backward pass does; after it each rank reads the whole result,
as an optimizer does. Both are part of the second figure of each row, not of the first. A round's time is that of its
slowest rank.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benches.machine import REPOSITORY, describe_commit, describe_machine
from softs_fast import _kernels
from softs_fast.collectives import Bucket, DDPState, ShmStrategy, ddp_hook
from softs_fast.collectives.backend import register, shared_tensors
from softs_fast.coordination.node import TrainingState

SIZES = (1 << 16, 1 << 20, 1 << 26)
RANKS = (2, 4)
# DeepSpeed's schedule: below this size each rank reduces everything; above, each its part, in pieces of 32 MiB.
DEEPSPEED_PARTS_FROM = 1 << 20
DEEPSPEED_PIECE = 32 << 20
LAYERS, WIDTH = 6, 2048


@dataclass
class Contender:
    """One way to all-reduce `tensor`: the tensor that the producer writes, the call, and the one that is read."""

    tensor: torch.Tensor
    call: Callable[[], object]
    result: torch.Tensor
    traffic: str


@dataclass
class Row:
    """Medians and ranges, in microseconds, of the slowest rank."""

    ranks: int
    n_bytes: int
    dtype: str
    name: str
    call_us: float
    call_range_us: tuple[float, float]
    total_us: float
    gb_per_s: float
    traffic: str


def main() -> None:
    """Measure, print, write. With `--quick` as an argument, among two ranks alone, and nothing is written."""
    quick = "--quick" in sys.argv[1:]
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "commit": describe_commit(),
        "rows": [],
    }
    for size in RANKS if not quick else RANKS[:1]:
        found["rows"] += [asdict(row) for row in _run(_collectives, size)]
        found[f"ceiling_gb_per_s_{size}"] = _run(_ceiling, size)
    found["ddp"] = _run(_ddp, 2)
    found["machine"]["load_after"] = describe_machine()["load_before"]
    if quick:
        _print(found)
        return
    folder = REPOSITORY / "benches" / "results" / "collectives"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{found['date'][:10]}-{found['commit']['hash'][:9]}.json"
    (folder / name).write_text(json.dumps(found, indent=1) + "\n")
    _print(found)


def _collectives(rank: int, size: int, folder: str) -> list[Row]:
    rows = []
    backend = dist.new_group(backend="softs")
    with ShmStrategy().init(rank, size, dist.group.WORLD) as strategy:
        for n_bytes in SIZES:
            for dtype in (torch.float32, torch.bfloat16):
                contenders = _contenders(strategy, backend, n_bytes, dtype)
                rounds = {1 << 16: 200, 1 << 20: 60, 1 << 26: 7}[n_bytes]
                times = _alternate(strategy, contenders, rounds)
                rows += [
                    _row(size, n_bytes, dtype, name, contender.traffic, times[name])
                    for name, contender in contenders.items()
                ]
    return rows


def _contenders(
    strategy: ShmStrategy, backend: dist.ProcessGroup, n_bytes: int, dtype: torch.dtype
) -> dict[str, Contender]:
    count = n_bytes // dtype.itemsize
    n = strategy.size

    def private() -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    own = strategy.bucket({"w": ((count,), dtype)})
    common = strategy.bucket({"w": ((count,), dtype)}, private=False)
    ours, doors, later, theirs, staged = (private() for _ in range(5))
    deepspeed = _DeepSpeed(strategy, staged)
    found = {
        "bucket, one result": Contender(
            common.views["w"], lambda: common.all_reduce("sum"), common.results["w"], f"{n} R + 1 W"
        ),
        "bucket": Contender(own.views["w"], lambda: own.all_reduce("sum"), own.views["w"], f"{n} R + {n} W"),
        "tensor": Contender(ours, lambda: strategy.all_reduce(ours), ours, f"{n} R + {n} W, rest in caches"),
        "backend": Contender(doors, lambda: dist.all_reduce(doors, group=backend), doors, "as tensor"),
        "backend, async": Contender(
            later, lambda: dist.all_reduce(later, group=backend, async_op=True).wait(), later, "as tensor"
        ),
        "DeepSpeed's schedule": Contender(staged, deepspeed.all_reduce, staged, f"{3 * n} R + {2 * n + 1} W"),
        "gloo": Contender(theirs, lambda: dist.all_reduce(theirs), theirs, "sockets"),
    }
    if dtype is not torch.float32:
        del found["gloo"], found["DeepSpeed's schedule"]
    return found


class _DeepSpeed:
    """DeepSpeed's schedule on our memory and kernels: copy in, reduce, copy out, for the tensor or a large piece."""

    def __init__(self, strategy: ShmStrategy, tensor: torch.Tensor) -> None:
        self._strategy = strategy
        self._tensor = tensor
        n_bytes = tensor.numel() * tensor.element_size()
        self._small = n_bytes < DEEPSPEED_PARTS_FROM
        piece = min(n_bytes, DEEPSPEED_PIECE)
        self._count = piece // tensor.element_size()
        self._buckets = [strategy.bucket({"w": ((self._count,), tensor.dtype)}) for _ in range(2)]
        self._parts = [self._of_all_ranks(bucket) for bucket in self._buckets]
        self._turn = 0

    def all_reduce(self) -> None:
        """Sum `tensor` over all ranks, in place."""
        for piece in self._tensor.split(self._count):
            parts = self._parts[self._turn]
            rank, size = self._strategy.rank, self._strategy.size
            parts[rank][: piece.numel()].copy_(piece)
            self._strategy.barrier()
            if self._small:
                # Two alternating sets of buffers save a second wait.
                self._reduce(parts, piece, 0, piece.numel())
                self._turn ^= 1
                continue
            bounds = [piece.numel() * other // size for other in range(size + 1)]
            self._reduce(parts, parts[rank], bounds[rank], bounds[rank + 1])
            self._strategy.barrier()
            for other in range(size):
                begin, end = bounds[other : other + 2]
                piece[begin:end].copy_(parts[other][begin:end])
            self._strategy.barrier()

    def _reduce(self, parts: list[torch.Tensor], into: torch.Tensor, begin: int, end: int) -> None:
        at = begin * into.element_size()
        dtype = str(into.dtype).removeprefix("torch.")
        _kernels.reduce(
            [part.data_ptr() + at for part in parts],
            [into.data_ptr() + at],
            end - begin,
            in_dtype=dtype,
            out_dtype=dtype,
            op="sum",
            scale=1.0,
            stream_stores=False,
            instruction_set=None,
        )

    def _of_all_ranks(self, bucket: Bucket) -> list[torch.Tensor]:
        region = bucket._region
        return [
            torch.frombuffer(region.part(rank), dtype=self._tensor.dtype)[: self._count]
            for rank in range(self._strategy.size)
        ]


def _alternate(
    strategy: ShmStrategy, contenders: dict[str, Contender], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return, for every contender, seconds of the call and of everything, by round; the slowest rank's."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for number in range(rounds + 2):
        for name, contender in contenders.items():
            strategy.barrier()
            start = time.perf_counter()
            contender.tensor.fill_(number % 3 + strategy.rank)
            # After all ranks have written, or the call would begin with a wait for the slowest of them.
            produced = time.perf_counter()
            strategy.barrier()
            called = time.perf_counter()
            contender.call()
            reduced = time.perf_counter()
            float(contender.result.sum())
            done = time.perf_counter()
            if number >= 2:
                times[name].append((reduced - called, done - called + produced - start))
    for name, own in times.items():
        slowest = torch.tensor(own, dtype=torch.float64)
        strategy.all_reduce(slowest, "max")
        times[name] = [(float(call), float(total)) for call, total in slowest]
    return times


def _row(
    size: int, n_bytes: int, dtype: torch.dtype, name: str, traffic: str, times: list[tuple[float, float]]
) -> Row:
    calls = sorted(call * 1e6 for call, _ in times)
    call = statistics.median(calls)
    return Row(
        size,
        n_bytes,
        str(dtype).removeprefix("torch."),
        name,
        call,
        (calls[len(calls) // 10], calls[-1 - len(calls) // 10]),
        statistics.median(total * 1e6 for _, total in times),
        n_bytes / call / 1e3,
        traffic,
    )


def _ceiling(rank: int, size: int, folder: str) -> float:
    """Return bytes read and written per nanosecond by all ranks, each copying 64 MiB with non-temporal stores."""
    source, target = torch.ones(1 << 24), torch.zeros(1 << 24)
    best = 0.0
    with ShmStrategy().init(rank, size, folder) as strategy:
        for _ in range(5):
            strategy.barrier()
            start = time.perf_counter()
            _kernels.reduce(
                [source.data_ptr()],
                [target.data_ptr()],
                source.numel(),
                in_dtype="float32",
                out_dtype="float32",
                op="sum",
                scale=1.0,
                stream_stores=True,
                instruction_set=None,
            )
            seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            strategy.all_reduce(seconds, "max")
            best = max(best, size * 2 * source.numel() * 4 / float(seconds) / 1e9)
    return best


def _ddp(rank: int, size: int, folder: str) -> list[dict[str, Any]]:
    """Time a step of a model of 25 M parameters, each way to reduce its gradients in turn.

    After the pass, and in it: as a `WorkerNode` reduces them, with a loop of the user's own in place of DDP.
    """
    # DDP makes its buckets anew in the first round, and the backend moves those that it has seen three times.
    rounds, unused_rounds = 15, 7
    backend = dist.new_group(backend="softs")
    with ShmStrategy().init(rank, size, dist.group.WORLD) as strategy, DDPState(strategy) as state:
        ways: dict[str, tuple[dist.ProcessGroup | None, Any, Any]] = {
            "gloo": (None, None, None),
            "backend": (backend, None, None),
            "backend, staged": (backend, None, None),
            # DDP refuses annotations that are texts.
            "backend, mean": (backend, backend, lambda group, bucket: _mean_hook(group, bucket)),
            "ddp_hook": (None, state, ddp_hook),
        }
        models = {}
        for name, (group, hook_state, hook) in ways.items():
            models[name] = DistributedDataParallel(_net(), gradient_as_bucket_view=True, process_group=group)
            if hook is not None:
                models[name].register_comm_hook(hook_state, hook)
        own = _net()
        training = TrainingState(own, torch.optim.SGD(own.parameters()))

        def after() -> None:
            own(data).square().mean().backward()
            training.reduce(strategy)
            training.drop_gradients()

        def overlapped() -> None:
            training.backward(strategy, own(data).square().mean())
            training.drop_gradients()

        loops = {"WorkerNode, after the pass": after, "WorkerNode, in the pass": overlapped}
        data = torch.randn(32, WIDTH)
        times: dict[str, list[tuple[float, float]]] = {
            name: [] for name in ("no communication", *models, *loops)
        }
        smallest = shared_tensors._SMALLEST_BYTES
        for number in range(rounds + unused_rounds):
            for name in times:
                model = models.get(name, models["gloo"])
                shared_tensors._SMALLEST_BYTES = sys.maxsize if "staged" in name else smallest
                strategy.barrier()
                start, start_cpu = time.perf_counter(), time.process_time()
                if name in loops:
                    loops[name]()
                elif name in models:
                    model(data).square().mean().backward()
                else:
                    with model.no_sync():
                        model(data).square().mean().backward()
                seconds = torch.tensor(
                    [time.perf_counter() - start, time.process_time() - start_cpu], dtype=torch.float64
                )
                strategy.all_reduce(seconds, "max")
                if number >= unused_rounds:
                    times[name].append((float(seconds[0]) * 1e3, float(seconds[1]) * 1e3))
    alone, _ = map(statistics.median, zip(*times["no communication"], strict=True))
    return [
        {
            "name": name,
            "step_ms": statistics.median(steps),
            "range_ms": (min(steps), max(steps)),
            "cpu_ms": statistics.median(cpu),
            "share": 1 - alone / statistics.median(steps),
        }
        for name, (steps, cpu) in ((name, zip(*own, strict=True)) for name, own in times.items())
    ]


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def _mean_hook(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Have the backend make the mean: without a hook DDP divides every bucket itself, one more pass over gradients."""
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, group=group, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def _run(function: Callable[[int, int, str], Any], size: int) -> Any:
    """Run a function in `size` processes; return what rank 0 returns."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(function, rank, size, folder, there)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"ranks ended with {[process.exitcode for process in processes]}")
        return here.recv()


def _rank(function: Callable[[int, int, str], Any], rank: int, size: int, folder: str, pipe: Any) -> None:
    torch.set_num_threads(1)
    register()
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    found = function(rank, size, folder)
    dist.destroy_process_group()
    if rank == 0:
        pipe.send(found)


def _print(found: dict[str, Any]) -> None:
    print(
        "| ranks | size | dtype | what | call us (10 to 90 %) | with producer and consumer us | GB/s "
        "| traffic per element |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        low, high = row["call_range_us"]
        call = f"{row['call_us']:.1f} ({low:.1f} to {high:.1f})"
        print(
            f"| {row['ranks']} | {row['n_bytes'] >> 10} KiB | {row['dtype']} | {row['name']} | {call} "
            f"| {row['total_us']:.1f} | {row['gb_per_s']:.2f} | {row['traffic']} |"
        )
    for size in sorted({row["ranks"] for row in found["rows"]}):
        print(
            f"\ncopies of {size} ranks together, non-temporal stores: {found[f'ceiling_gb_per_s_{size}']:.1f} GB/s "
            "read and written"
        )
    for row in found["ddp"]:
        print(
            f"step, {row['name']}: {row['step_ms']:.1f} ms, {row['share']:.0%} of it communication; "
            f"{row['cpu_ms']:.1f} ms of processors in the slower rank"
        )


if __name__ == "__main__":
    main()
