"""The backend "softs" of torch.distributed beside gloo: calls, a large model, shards, hosts, and a rank that dies.

`python -m benches.backend` prints the tables of docs/collectives.md. Hosts are network namespaces, with a line of
`--megabits` between them. All ways are measured in turns of one run; a time
is that of the slowest rank, and CPU time that of all ranks together.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benches.machine import describe_commit, describe_machine
from softs_fast.collectives.backend import register
from softs_fast.errors import PeerLost
from softs_fast.gpu import ranks
from softs_fast.trust import write_token

#: Rounds, and calls in a row of one round: ranks leave a barrier one after the other, which takes longer than a small call.
SIZES = {1 << 16: (20, 100), 1 << 20: (20, 20), 1 << 24: (12, 2), 1 << 26: (6, 1)}
#: A transformer of 97 M parameters.
N_WORDS, WIDTH, N_LAYERS, N_TOKENS = 16_000, 768, 12, 16
#: DDP makes its buckets anew in the first step, and the backend moves those that it has seen three times.
N_UNUSED = 5


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of the large model and of shards, each way")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--megabits", type=float, default=200.0, help="rate of the line between hosts, Mb/s")
    parser.add_argument("--of-host", nargs=2, metavar=("RANK", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.of_host:
        time_hosts(int(options.of_host[0]), options.of_host[1])
        return
    ranks.set_start_method("spawn")
    print(describe_commit()["hash"][:9], describe_machine())
    with TemporaryDirectory() as folder:
        (calls, floors), *_ = ranks.run(time_calls, options.ranks, folder)
        print(
            f"\n| call, {options.ranks} ranks | size | softs us | gloo us | gloo / softs |\n|---|---|---|---|---|"
        )
        for (name, n_bytes), (ours, theirs) in calls.items():
            print(f"| {name} | {n_bytes >> 10} KiB | {ours:.0f} | {theirs:.0f} | {theirs / ours:.1f} |")
        print("\n| all ranks at once, each alone | size | copy us | pass in place us |\n|---|---|---|---|")
        for n_bytes, (copied, passed) in floors.items():
            print(f"| | {n_bytes >> 10} KiB | {copied:.0f} | {passed:.0f} |")
    print(
        "\n| step | no communication ms | gloo adds ms | softs adds ms | softs / gloo | of CPU time | pass over gradients ms |"
    )
    print("|---|---|---|---|---|---|---|")
    for title, train in (("DDP, 97 M transformer", ddp_steps), ("FSDP2, 97 M transformer", sharded_steps)):
        with TemporaryDirectory() as folder:
            times, *_ = ranks.run(train, options.ranks, folder, options.steps)
        (alone, alone_cpu), (theirs, theirs_cpu), (ours, ours_cpu), (passed, _) = times
        added = (ours - alone) / (theirs - alone)
        cpu = (ours_cpu - alone_cpu) / (theirs_cpu - alone_cpu)
        print(
            f"| {title} | {alone:.0f} | {theirs - alone:.0f} | {ours - alone:.0f} | {added:.2f} | {cpu:.2f} | {passed:.0f} |",
            flush=True,
        )
    print(
        f'\n| 2 hosts x 2 ranks, {options.megabits:g} Mb/s | "softs" ms | "softs+plain" ms | gloo ms | TCP alone ms | gloo / softs |\n'
        "|---|---|---|---|---|---|"
    )
    for n_bytes, (ours, plain, theirs, line) in between_hosts(options.megabits * 1e6).items():
        print(
            f"| {int(n_bytes) >> 10} KiB | {ours * 1e3:.1f} | {plain * 1e3:.1f} | {theirs * 1e3:.1f} | {line * 1e3:.1f} | "
            f"{theirs / ours:.1f} |"
        )
    late = [ms for _ in range(options.kills) for ms in kill_once()]
    print(
        f"\nfrom the end of a rank, as the kernel tells it, to the error on the others: median {statistics.median(late):.1f} "
        f"ms, at most {max(late):.1f} ms"
    )


def join(rank: int, size: int, folder: str, backend: str) -> None:
    """Join the default group."""
    torch.set_num_threads(1)
    register()
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=size)


def in_turns(
    ways: dict[str, Callable[[], Any]], rounds: int, unused: int = 2, n_calls: int = 1
) -> list[tuple[float, float]]:
    """Return of each way the median of a call's seconds on the slowest rank, and of the CPU seconds of all ranks."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds + unused):
        for name, call in ways.items():
            dist.barrier()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            for _ in range(n_calls):
                call()
            took = torch.tensor([time.perf_counter() - begin, 0.0], dtype=torch.float64)
            # The others' part of the call.
            dist.barrier()
            took[1] = time.process_time() - begin_cpu
            slowest, together = took.clone(), took
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            dist.all_reduce(together)
            if number >= unused:
                found[name].append((float(slowest[0]) / n_calls, float(together[1]) / n_calls))
    medians = [[statistics.median(column) for column in zip(*times, strict=True)] for times in found.values()]
    return [(wall, cpu) for wall, cpu in medians]


def time_calls(
    say: Callable[[Any], None], rank: int, size: int, folder: str
) -> tuple[dict[tuple[str, int], tuple[float, float]], dict[int, tuple[float, float]]]:
    """Time calls of tensors that are `n_bytes` long where they are whole, and what a core takes to read and write as much."""
    join(rank, size, folder, "gloo")
    groups = {"softs": dist.new_group(backend="softs"), "gloo": dist.group.WORLD}
    found, floors = {}, {}
    for n_bytes, (rounds, n_calls) in SIZES.items():
        whole, other = torch.ones(n_bytes // 4), torch.ones(n_bytes // 4)
        part = torch.ones(len(whole) // size)
        calls: dict[str, Callable[[Any], Any]] = {
            "all_reduce": lambda group, whole=whole: dist.all_reduce(whole, group=group),
            "all_gather": lambda group, whole=whole, part=part: dist.all_gather_into_tensor(
                whole, part, group
            ),
            "reduce_scatter": lambda group, whole=whole, part=part: dist.reduce_scatter_tensor(
                part, whole, group=group
            ),
            "all_to_all": lambda group, whole=whole, other=other: dist.all_to_all_single(
                other, whole, group=group
            ),
            "broadcast": lambda group, whole=whole: dist.broadcast(whole, 0, group),
        }
        for name, call in calls.items():
            ways = {title: lambda call=call, group=group: call(group) for title, group in groups.items()}
            (ours, _), (theirs, _) = in_turns(ways, rounds, n_calls=n_calls)
            found[name, n_bytes] = (ours * 1e6, theirs * 1e6)
        alone = {"copy": functools.partial(other.copy_, whole), "pass": functools.partial(whole.mul_, 1.0)}
        (copied, _), (passed, _) = in_turns(alone, rounds, n_calls=n_calls)
        floors[n_bytes] = (copied * 1e6, passed * 1e6)
    dist.destroy_process_group()
    return found, floors


def model() -> torch.nn.Module:
    """Return the transformer."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(N_WORDS, WIDTH),
        torch.nn.TransformerEncoder(layer, N_LAYERS, enable_nested_tensor=False),
    )


def pass_over(one: torch.nn.Module) -> Callable[[], Any]:
    """Return what reads and writes as many bytes as the gradients of a model have, once."""
    return functools.partial(torch.ones(sum(weight.numel() for weight in one.parameters())).mul_, 1.0)


def ddp_steps(
    say: Callable[[Any], None], rank: int, size: int, folder: str, n_steps: int
) -> list[tuple[float, float]]:
    """Time forward and backward without communication, over gloo, and over softs."""
    join(rank, size, folder, "gloo")
    words = torch.randint(N_WORDS, (1, N_TOKENS))
    models = [
        DistributedDataParallel(model(), gradient_as_bucket_view=True, process_group=group)
        for group in (None, dist.new_group(backend="softs"))
    ]

    def step(which: int) -> None:
        models[which](words).square().mean().backward()

    def alone() -> None:
        with models[0].no_sync():
            step(0)

    ways = {"alone": alone, "gloo": lambda: step(0), "softs": lambda: step(1), "pass": pass_over(models[0])}
    found = [(wall * 1e3, cpu * 1e3) for wall, cpu in in_turns(ways, n_steps, N_UNUSED)]
    dist.destroy_process_group()
    return found


def sharded_steps(
    say: Callable[[Any], None], rank: int, size: int, folder: str, n_steps: int
) -> list[tuple[float, float]]:
    """Time forward and backward of the model whole on each rank, and in shards over gloo and over softs."""
    join(rank, size, folder, "gloo")
    words = torch.randint(N_WORDS, (1, N_TOKENS))
    models = {"alone": model()}
    for name, group in (("gloo", dist.group.WORLD), ("softs", dist.new_group(backend="softs"))):
        sharded = model()
        assert group is not None
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in (sharded[0], *sharded[1].layers):  # type: ignore[index]
            fully_shard(layer, mesh=mesh)
        models[name] = fully_shard(sharded, mesh=mesh)
    ways = {
        name: lambda one=one: one(words).square().mean().backward()  # type: ignore[misc]
        for name, one in models.items()
    }
    ways["pass"] = pass_over(models["alone"])
    found = [(wall * 1e3, cpu * 1e3) for wall, cpu in in_turns(ways, n_steps)]
    dist.destroy_process_group()
    return found


def between_hosts(bits_per_s: float) -> dict[str, list[float]]:
    """Return the times of all-reduces of two hosts with two ranks each, by size."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "peers"))
    from emulator import Shape
    from networks import Network

    with TemporaryDirectory() as folder, Network() as network:
        token = Path(folder, "token")
        write_token(token)
        places = [network.host(switched=False) for _ in range(2)]
        line = network.line(*places, Shape(bits_per_s=bits_per_s), mtu=9000)
        # A command has the processes of its host only with numbers of that host.
        command = ["--pid", sys.executable, "-m", "benches.backend", "--of-host"]
        running = [
            subprocess.Popen(
                [*places[rank // 2].prefix(), *command, str(rank), line.address(places[0])],
                env=os.environ | {"GLOO_SOCKET_IFNAME": "line1", "SOFTS_FAST_TOKEN_FILE": str(token)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(4)
        ]
        said, *_ = [one.communicate()[0] for one in running]
    found: dict[str, list[float]] = json.loads(said)
    return found


def time_hosts(rank: int, address: str) -> None:
    """Time all-reduces of four ranks, and print the times on rank 0."""
    torch.set_num_threads(1)
    register()
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29500", rank=rank, world_size=4)
    groups = {name: dist.new_group(backend=name) for name in ("softs", "softs+plain", "gloo")}
    line = connected(rank, address)
    found = {}
    for n_bytes in (1 << 20, 1 << 22, 1 << 24):
        whole = torch.ones(n_bytes // 4)
        ways: dict[str, Callable[[], Any]] = {
            name: functools.partial(dist.all_reduce, whole, group=group) for name, group in groups.items()
        }
        ways["line"] = functools.partial(exchange, line, n_bytes)
        found[n_bytes] = [wall for wall, _ in in_turns(ways, 5, unused=1)]
    if line is not None:
        line.close()
    dist.destroy_process_group()
    if rank == 0:
        print(json.dumps(found))


def connected(rank: int, address: str) -> socket.socket | None:
    """Return a connection of the first ranks of both hosts; None on the others."""
    server = socket.create_server((address, 29501)) if rank == 0 else None
    dist.barrier()
    if server is not None:
        with server:
            return server.accept()[0]
    return socket.create_connection((address, 29501)) if rank == 2 else None


def exchange(line: socket.socket | None, n_bytes: int) -> None:
    """Send as many bytes as an all-reduce of two hosts must, and receive as many meanwhile."""
    if line is None:
        return
    sending = threading.Thread(target=line.sendall, args=(bytes(n_bytes),))
    sending.start()
    while n_bytes:
        received = line.recv(min(n_bytes, 1 << 20))
        if not received:
            raise ConnectionError("the other host has closed the connection")
        n_bytes -= len(received)
    sending.join()


def until_lost(say: Callable[[Any], None], rank: int, size: int, folder: str) -> None:
    """Reduce until a rank is lost, and tell when that is."""
    join(rank, size, folder, "softs")
    dist.barrier()
    say(os.getpid())
    try:
        while True:
            dist.all_reduce(torch.zeros(300_000))
    except PeerLost:
        say(time.monotonic())


def kill_once() -> list[float]:
    """Kill one of three ranks; milliseconds from its end to the errors of the others."""
    with TemporaryDirectory() as folder, ranks.start(until_lost, 3, folder) as running:
        pids = [running.receive(rank) for rank in range(3)]
        time.sleep(0.2)
        ended = select.poll()
        descriptor = os.pidfd_open(pids[2])
        try:
            ended.register(descriptor, select.POLLIN)
            os.kill(pids[2], signal.SIGKILL)
            ended.poll()
            begin = time.monotonic()
        finally:
            os.close(descriptor)
        return [(running.receive(rank) - begin) * 1e3 for rank in (0, 1)]


if __name__ == "__main__":
    main()
