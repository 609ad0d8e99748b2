"""A coordinator with many workers: its CPU time while nothing happens, and how long a fence and a table take to all.

``python -m benches.coordinator --workers 1000 --lost-after 4``. The workers are streams of one process, with pings of their
own; CPU time is that of the coordinator's process.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from softs_fast.coordination import Pings, import_grpc
from softs_fast.coordination.job import messages as m
from softs_fast.coordination.wire import requests
from softs_fast.coordination.wire.formats import FROM_WORKER, MAX_TABLE_BYTES, TO_WORKER

#: Workers that connect at once.
_AT_ONCE = 50


@functools.lru_cache(maxsize=4)
def _decoded(data: bytes) -> m.ToWorker:
    """Decode a message once: a worker reads one table of a thousand members, this process a thousand of them."""
    return TO_WORKER.decode(data)


class Worker:
    """One stream."""

    def __init__(self, address: str, number: int, pings: Pings) -> None:
        from grpc import aio

        import_grpc()
        options = [
            *pings.client_options(),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", MAX_TABLE_BYTES),
        ]
        self._channel = aio.insecure_channel(address, options)
        self._call: Any = self._channel.stream_stream(requests.SESSION)()
        self._number = number
        self.told = (0, 0)

    async def say(self, message: m.FromWorker) -> None:
        """Send a message."""
        await self._call.write(FROM_WORKER.encode(message))

    async def join(self) -> None:
        """Say Hello, and wait for the answer."""
        await self.say(m.Hello("job", f"worker{self._number}", 1, self._number, f"10.0.0.1:{self._number}"))
        await self._call.read()

    async def receive(self) -> float:
        """Wait for the next message; when it came."""
        data = await self._call.read()
        came_s = time.monotonic()
        message = _decoded(data)
        assert isinstance(message, m.Table | m.Fence)
        self.told = message.boot, message.epoch
        return came_s

    async def ready(self) -> None:
        """Wait for a table."""
        await self.say(m.Ready(m.WorkerState(), *self.told))

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()


async def measure(
    address: str, pid: int, n: int, pings: Pings, seconds: float, rounds: int
) -> dict[str, Any]:
    """Connect n workers, and measure."""
    workers = [Worker(address, i, pings) for i in range(n)]
    for start in range(0, n, _AT_ONCE):
        await asyncio.gather(*(worker.join() for worker in workers[start : start + _AT_ONCE]))
    result: dict[str, Any] = {"fence_ms": [], "table_ms": []}
    for _ in range(rounds):
        began_s = time.monotonic()
        for worker in workers:
            await worker.ready()
        said_s = time.monotonic()
        came = await asyncio.gather(*(worker.receive() for worker in workers))
        result["table_ms"].append((max(came) - said_s) * 1e3)
        result["ready_ms"] = (said_s - began_s) * 1e3
        await workers[0].say(m.Fault(workers[0].told[1], 1, None, "bench"))
        said_s = time.monotonic()
        came = await asyncio.gather(*(worker.receive() for worker in workers))
        result["fence_ms"].append((max(came) - said_s) * 1e3)
    before_s, began_s = _cpu_s(pid), time.monotonic()
    await asyncio.sleep(seconds)
    result["idle_share"] = (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    result["memory_mib"] = _memory_mib(pid)
    await asyncio.gather(*(worker.close() for worker in workers))
    return result


def main() -> None:
    """Start a coordinator, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--lost-after", type=float, default=4.0, help="seconds without an answer to a ping")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the idle measurement")
    parser.add_argument("--rounds", type=int, default=5, help="fences and tables")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    words = [
        "--world-size",
        str(options.workers),
        "--listen",
        "127.0.0.1:0",
        "--lost-after",
        str(options.lost_after),
    ]
    command = [sys.executable, "-m", "softs_fast", "coordinator", "run", *words, "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:
        assert coordinator.stdout is not None
        address = coordinator.stdout.readline().split()[1]
        pings = Pings(options.lost_after / 2, options.lost_after / 2)
        try:
            result = asyncio.run(
                measure(address, coordinator.pid, options.workers, pings, options.seconds, options.rounds)
            )
        finally:
            coordinator.terminate()
    for name in ("fence_ms", "table_ms"):
        values = result[name]
        result[name] = {"median": round(statistics.median(values), 1), "max": round(max(values), 1)}
    print(json.dumps({"workers": options.workers, "lost_after_s": options.lost_after, **result}))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
