"""What faults cost a parameter server: stale pushes, exits, restarts, junk, and what an idle one uses.

``python -m benches.paramserver_faults [NAME ...]``; each prints one line of JSON. Times are single ones, of this machine
and its load.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from softs_fast.process import raise_descriptor_limit

from . import paramserver_ways as ways
from .proc import cpu_s, resident

LAYERS = 21
_JUNK_PER_S = 1000
_JUNK_ROUNDS = 20
_LEASE_S = 5.0
_STEP_S = 0.25
_SLOW_ROUNDS = 60
_STRANGERS = 1100
_JOINS = 40


def stale() -> dict[str, Any]:
    """A float32 push of 88 MB: refused when it is announced, and when its round ends during the upload."""
    from softs_fast.paramserver.worker.exchanges import Upload
    from softs_fast.paramserver.worker.sizes import PartSizes

    with server(LAYERS, codec="f32", world_size=2, quorum=1, round_timeout_s=0.5) as (_, invite, setting):
        slow, quick = (remote(setting, invite, i) for i in range(2))
        frame = push_of(slow, setting)
        halfway = Upload(frame, PartSizes(1 << 20))
        before = slow.traffic.sent_bytes
        for _ in range(2):
            slow.session.attempt(halfway)
        quick.step()
        begun = slow.traffic.sent_bytes
        slow.session.run(halfway)
        after_round = slow.traffic.sent_bytes - begun
        begun = slow.traffic.sent_bytes
        slow.session.run(Upload(frame, PartSizes(1 << 20)))
        announced = slow.traffic.sent_bytes - begun
        for one in (slow, quick):
            one.close()
        return {
            "push_bytes": len(frame),
            "sent_before_its_round_ended": begun - after_round - before,
            "sent_after_its_round_ended": after_round,
            "sent_if_stale_at_first": announced,
        }


def dead() -> dict[str, Any]:
    """Seconds of rounds of 4 workers; one is killed after the sixth. A round of the others is what one is before that."""
    setting = ways.Setting(1, 4, "bf16", "bf16", False, 1 << 30, os.environ["BENCH_FOLDER"])
    with ways.Way(_ShortLease(), ways.our_worker, setting) as ours:
        ours.rounds(2)
        seconds = [ours.rounds(1) for _ in range(6)]
        process, _ = ours.workers.pop()
        process.kill()
        seconds += [ours.rounds(1) for _ in range(12)]
        before, after = statistics.median(seconds[:6]), statistics.median(seconds[7:])
        return {
            "lost_after_s": _LEASE_S,
            "killed_after": 6,
            "round_s": [round(one, 2) for one in seconds],
            "median_before_s": round(before, 3),
            "with_the_dead_one_s": round(seconds[6], 2),
            "median_after_s": round(after, 3),
            "slowest_after_s": round(max(seconds[7:]), 2),
        }


def slow() -> dict[str, Any]:
    """Seconds of rounds of 3 workers, alone, beside one that is 20 times slower, and beside one that never pushes."""
    found = {name: _rounds_beside(factor) for name, factor in (("alone", 0), ("slow", 20), ("hung", 10_000))}
    alone = found["alone"]["median_s"]
    return {**found, "times": {name: round(found[name]["median_s"] / alone, 2) for name in ("slow", "hung")}}


def _rounds_beside(factor: int) -> dict[str, float]:
    with server(1, world_size=3 + (factor > 0), quorum=3) as (_, invite, setting):
        workers = [remote(setting, invite, i) for i in range(3 + (factor > 0))]
        is_over = threading.Event()

        def work(worker: Any, step_s: float) -> None:
            while not is_over.wait(step_s):
                worker.step()

        seconds = [_STEP_S] * 3 + [_STEP_S * factor]
        threads = [
            threading.Thread(target=work, args=one, daemon=True)
            for one in zip(workers, seconds, strict=False)
        ]
        begun = time.perf_counter()
        for one in threads:
            one.start()
        rounds, version = [], 0
        while len(rounds) < _SLOW_ROUNDS:
            wait_for(lambda: workers[0].version[1] > version)  # noqa: B023
            version, now = workers[0].version[1], time.perf_counter()
            rounds.append(now - begun)
            begun = now
        is_over.set()
        for one in threads[:3]:
            one.join()
        return {
            "first_s": round(rounds[0], 3),
            "median_s": round(statistics.median(rounds), 3),
            "slowest_s": round(max(rounds), 3),
        }


def restart() -> dict[str, Any]:
    """Seconds from the start of a second server, the first one being killed, to the first push that counts."""
    folder = Path(os.environ["BENCH_FOLDER"])
    job = folder / "bench_job.py"
    job.write_text(_JOB)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "softs_fast", "paramserver", "run", "bench_job:job"),
        *("--world-size", "1", "--rounds", "1000000", "--batch-size", "32", "--listen", f"127.0.0.1:{port}"),
    ]
    first = started(command, folder)
    invite = first.invite
    setting = ways.Setting(1, 1, "bf16", "bf16", True, 1, str(folder))
    worker = remote(setting, invite, 0)
    is_over = threading.Event()

    def work() -> None:
        while not is_over.is_set():
            worker.step()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    found: list[dict[str, float]] = []
    for _ in range(3):
        n = worker.counts.counted
        wait_for(lambda: worker.counts.counted > n + 3)  # noqa: B023
        first.kill()
        timeline = worker.version[0]
        begun = time.monotonic()
        first = started(command, folder)
        listening = time.monotonic()
        wait_for(lambda: worker.version[0] > timeline)  # noqa: B023
        n, version = worker.counts.counted, worker.version
        wait_for(lambda: worker.counts.counted > n)  # noqa: B023
        counted = time.monotonic()
        wait_for(lambda: worker.version > version)  # noqa: B023
        found.append(
            {
                "start_to_invite_s": round(listening - begun, 2),
                "start_to_counted_s": round(counted - begun, 2),
                "start_to_step_s": round(time.monotonic() - begun, 2),
                "server_cpu_s": round(cpu_s(first.pid), 2),
                "load": round(os.getloadavg()[0], 1),
            }
        )
    is_over.set()
    thread.join()
    first.kill()
    return {"restarts": found, "imports": _imports()}


def _imports() -> dict[str, float]:
    """CPU seconds of a new process until torch is there, and until it has made an optimizer."""
    program = (
        "import time; import torch; a = time.process_time(); p = torch.zeros(1, requires_grad=True); "
        "torch.optim.SGD([p]); print(a, time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = (float(word) for word in done.stdout.split())
    return {"torch_cpu_s": round(first, 2), "with_an_optimizer_cpu_s": round(second, 2)}


def junk() -> dict[str, Any]:
    """Rounds with and without 1,000 requests per second that nothing has signed; the weights must be the same."""
    found: dict[str, Any] = {}
    weights: list[Any] = []
    context = multiprocessing.get_context("spawn")
    for name in ("quiet", "junk"):
        with server(4, world_size=2, quorum=2) as (pid, invite, setting):
            workers = [remote(setting, invite, i) for i in range(2)]
            stop, sent = context.Event(), context.Value("q", 0)
            process = context.Process(target=_junk, args=(invite, stop, sent))
            if name == "junk":
                process.start()
                wait_for(lambda: sent.value > _JUNK_PER_S)  # noqa: B023
            memory = resident(pid).own
            used, begun_n, begun_s = cpu_s(pid), sent.value, time.perf_counter()
            seconds = []
            for _ in range(_JUNK_ROUNDS):
                begun = time.perf_counter()
                threads = [threading.Thread(target=one.step) for one in workers]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                seconds.append(time.perf_counter() - begun)
            whole_s = time.perf_counter() - begun_s
            rate, share = (sent.value - begun_n) / whole_s, (cpu_s(pid) - used) / whole_s
            stop.set()
            if name == "junk":
                process.join()
            found[name] = {
                "median_s": round(statistics.median(seconds), 3),
                "slowest_s": round(max(seconds), 3),
                "junk_per_s": round(rate),
                "server_share_of_a_core": round(share, 2),
                "server_grew_mib": round((resident(pid).own - memory) / (1 << 20), 1),
                "version": workers[0].version,
            }
            weights.append([one.detach().clone() for one in workers[0].module.parameters()])
            for one in workers:
                one.close()
    same = all(bool((first == second).all()) for first, second in zip(*weights, strict=True))
    return {**found, "same_weights": same}


def door() -> dict[str, Any]:
    """Memory, log and seconds of an honest join beside 1,100 connections that name the owner and hold back a body."""
    raise_descriptor_limit()
    with server(1, world_size=1, quorum=1, serve=_logging_server) as (pid, invite, setting):
        log = Path(setting.folder, "log")
        alone = _joins(setting, invite)
        memory = resident(pid).own
        peers = _strangers(invite)
        time.sleep(1.0)
        beside = _joins(setting, invite)
        grown = resident(pid).own - memory
        for one in peers:
            one.close()
        return {
            "connections": len(peers),
            "grown_mib": round(grown / (1 << 20), 1),
            "log_bytes": log.stat().st_size,
            "join_alone_ms": round(1e3 * alone, 1),
            "join_beside_ms": round(1e3 * beside, 1),
            "times": round(beside / alone, 2),
        }


def _logging_server(setting: ways.Setting, pipe: Any, **run: Any) -> None:
    """Serve, with what the process writes in a file."""
    from softs_fast import setup_logging

    with Path(setting.folder, "log").open("wb") as log:
        os.dup2(log.fileno(), 2)
    setup_logging("info")
    ways.our_server(setting, pipe, **run)


def _joins(setting: ways.Setting, invite: str) -> float:
    """Return the median seconds of a join, of a process that has never joined before."""
    from softs_fast.paramserver import Invite
    from softs_fast.paramserver.wire.manifest import Manifest
    from softs_fast.paramserver.worker.exchanges import Call
    from softs_fast.paramserver.worker.options import WorkerOptions
    from softs_fast.paramserver.worker.session import Session

    manifest, seconds = Manifest.of(ways.model_of(setting)), []
    for _ in range(_JOINS):
        begun = time.perf_counter()
        session = Session(Invite.parse(invite), manifest, WorkerOptions("bench"))
        session.join()
        seconds.append(time.perf_counter() - begun)
        session.attempt(Call("POST", "/v1/leave", b"{}"))
        session.close()
    return statistics.median(seconds)


def _strangers(invite: str) -> list[socket.socket]:
    """Return connections of which each sends as much as the server takes of a body that nothing has signed."""
    from softs_fast.paramserver import Invite

    parts = urlsplit(Invite.parse(invite).url)
    head = (
        "POST /v1/push HTTP/1.1\r\nHost: x\r\nContent-Length: 262272\r\n"
        f"Authorization: SF1 id=owner, n=1, mac={'0' * 64}\r\n\r\n"
    )
    peers = []
    for _ in range(_STRANGERS):
        peer = socket.create_connection((parts.hostname, parts.port), timeout=60.0)
        peer.settimeout(0.01)
        peers.append(peer)
        # The last bytes are held back, so that the request does not end.
        with contextlib.suppress(OSError):
            peer.sendall(head.encode() + bytes(262_000))
    return peers


def idle() -> dict[str, Any]:
    """Share of a core that a server uses while 4 workers wait for a fifth."""
    with server(1, world_size=5, quorum=5) as (pid, invite, setting):
        workers = [remote(setting, invite, i) for i in range(4)]
        # Steps would wait for the fifth worker; the bench ends without them.
        for one in workers:
            threading.Thread(target=one.step, daemon=True).start()
        time.sleep(5.0)
        used, begun = cpu_s(pid), time.monotonic()
        time.sleep(30.0)
        return {"share_of_a_core": round((cpu_s(pid) - used) / (time.monotonic() - begun), 4)}


# --- Parts ---

_JOB = """
from benches import paramserver_ways as ways
from softs_fast.paramserver import Job

job = Job(
    lambda: ways.model_of(ways.Setting(1, 1, "bf16", "bf16", True, 1, ".")),
    lambda module, batch: module(batch).sum(),
    list,
    optimizer=ways.sgd,
)
"""


class _ShortLease:
    def __call__(self, setting: ways.Setting, pipe: Any) -> None:
        ways.our_server(setting, pipe, lost_after_s=_LEASE_S, quorum=3)


class started:
    """A server by its command; it has printed its invite."""

    def __init__(self, command: list[str], folder: Path) -> None:
        paths = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
        self._process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )  # fmt: skip
        assert self._process.stdout is not None
        said = ""
        for line in self._process.stdout:
            said += line
            words = [word.strip("'") for word in line.split() if word.strip("'").startswith("softs1.")]
            if words:
                self.invite = words[0]
                break
        else:
            raise RuntimeError(said)
        self.pid = self._process.pid
        threading.Thread(target=self._process.stdout.read, daemon=True).start()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def server(layers: int, codec: str = "bf16", serve: Any = ways.our_server, **run: Any) -> Any:
    """Give process id, invite and setting of a server in another process."""
    setting = ways.Setting(layers, 2, codec, "bf16", False, 1 << 30, os.environ["BENCH_FOLDER"])
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(setting, theirs), kwargs=run)
    process.start()
    theirs.close()
    try:
        yield process.pid, ours.recv(), setting
    finally:
        ours.close()
        process.join(10.0)
        if process.is_alive():
            process.kill()
        for name in ("state", "model.pth"):
            Path(setting.folder, name).unlink(missing_ok=True)


def remote(setting: ways.Setting, invite: str, number: int) -> Any:
    """Return an optimizer that has joined, with gradients."""
    from softs_fast.paramserver import RemoteOptimizer

    module = ways.model_of(setting)
    optimizer = RemoteOptimizer(module, invite)
    ways.gradients(module, number)
    return optimizer


def push_of(worker: Any, setting: ways.Setting) -> Any:
    """Return a push of the weights that a worker has."""
    import torch

    from softs_fast.paramserver.wire.frame import encode_frame
    from softs_fast.paramserver.wire.header import Codec, Kind
    from softs_fast.paramserver.wire.tensors import Contents, buffers_of

    gradient = torch.cat([one.grad.reshape(-1) for one in worker.module.parameters()])
    timeline, version = worker.version
    return encode_frame(
        Contents(gradient, *buffers_of(worker.module, worker.manifest)), kind=Kind.GRADIENT, codec=Codec.F32,
        job=worker.session.invite.job, manifest=worker.manifest, timeline=timeline, version=version, samples=32,
    )  # fmt: skip


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until something is so."""
    until_s = time.monotonic() + 120.0
    while not what():
        if time.monotonic() > until_s:
            raise TimeoutError("the bench waits for longer than 120 s")
        time.sleep(0.001)


def _junk(invite: str, stop: Any, sent: Any) -> None:
    """Send requests of four kinds without a signature, several at a time on each connection, and read all answers."""
    from softs_fast.paramserver import Invite

    parts = urlsplit(Invite.parse(invite).url)
    kinds = [("POST", "/v1/push"), ("GET", "/v1/model"), ("POST", "/v1/join"), ("GET", "/nothing")]
    batch = b"".join(
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {2 * (method == 'POST')}\r\n\r\n".encode()
        + b"{}" * (method == "POST")
        for method, path in kinds * 10
    )
    peer = socket.create_connection((parts.hostname, parts.port), timeout=60.0)
    begun = time.monotonic()
    while not stop.is_set():
        n, answers = 0, b""
        try:
            peer.sendall(batch)
            while n < 40 and (data := peer.recv(1 << 16)):
                # The rest of the one before may hold the beginning of a head.
                n += (answers[-8:] + data).count(b"HTTP/1.1 ")
                answers = data
        except OSError:
            n = 0
        if n < 40:
            peer.close()
            peer = socket.create_connection((parts.hostname, parts.port), timeout=60.0)
        with sent.get_lock():
            sent.value += n
            done = sent.value
        time.sleep(max(0.0, begun + done / _JUNK_PER_S - time.monotonic()))


def main() -> None:
    """Run what is named, or all."""
    benches = {one.__name__: one for one in (stale, dead, slow, restart, junk, door, idle)}
    for name in sys.argv[1:] or benches:
        with ways.files() as folder:
            os.environ["BENCH_FOLDER"] = folder
            print(
                json.dumps({name: benches[name](), "load": [round(one, 1) for one in os.getloadavg()]}),
                flush=True,
            )
    os._exit(0)


if __name__ == "__main__":
    main()
