"""Three ways to do rounds of gradients and weights: the parameter server, plain HTTP, and ComputeShare.

Each way is a server process and worker processes that stay alive, and do rounds when they are told to. The gradients
are there before a round begins, so a round is what travels and what is done with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from .proc import cpu_s

WATCHDOG_S = 3600.0
#: Of a layer: 1024 x 1024 weights and 1024 biases.
LAYER = 1024
_PIN = "1234"


@dataclass(frozen=True)
class Setting:
    """Of a run.

    Attributes:
        layers: Number of layers of the model, 1,049,600 parameters each.
        workers: Number of processes that train.
        codec: Codec of pushes.
        pull: Codec of weights.
        planes: Whether both are split into planes and compressed.
        save_every: Rounds between two state files.
        folder: Folder for files.
    """

    layers: int
    workers: int
    codec: str
    pull: str
    planes: bool
    save_every: int
    folder: str

    @property
    def n(self) -> int:
        """Parameters of the model."""
        return self.layers * (LAYER * LAYER + LAYER)


class Way:
    """A server and its workers.

    Args:
        serve: Function of the server: takes the setting and a pipe, sends its address, and ends when the pipe does.
        work: Function of a worker: takes the setting, the address and a number; returns what does one round and says
            the bytes of bodies so far, sent and received.
        setting: Setting of the server and its workers.
    """

    def __init__(
        self,
        serve: Callable[[Setting, Connection], None],
        work: Callable[[Setting, Any, int], Any],
        setting: Setting,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self.setting = setting
        self.server, self._pipe = _started(context, serve, setting)
        address = _received(self._pipe)
        self.workers = [_started(context, _worker, work, setting, address, i) for i in range(setting.workers)]
        for _, pipe in self.workers:
            _received(pipe)

    def rounds(self, n: int) -> float:
        """Return the seconds of one round, of n that all workers do."""
        began_s = time.perf_counter()
        for _, pipe in self.workers:
            pipe.send(n)
        self.bytes = [_received(pipe) for _, pipe in self.workers]
        return (time.perf_counter() - began_s) / n

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes so far."""
        return sum(cpu_s(one.pid) for one in [self.server, *(process for process, _ in self.workers)])

    def close(self) -> None:
        """End all processes."""
        for process, pipe in [*self.workers, (self.server, self._pipe)]:
            pipe.close()
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self.close()


def model_of(setting: Setting) -> Any:
    """Return the model, the same in all processes."""
    import torch

    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(LAYER, LAYER) for _ in range(setting.layers)))


def gradients(module: Any, number: int) -> None:
    """Give each parameter a gradient, another one for each worker."""
    import torch

    generator = torch.Generator().manual_seed(number)
    for one in module.parameters():
        one.grad = torch.randn(one.shape, generator=generator) * 1e-3


# --- The parameter server ---


def our_server(setting: Setting, pipe: Connection, **more: Any) -> None:
    """Serve rounds of all workers."""
    from softs_fast.paramserver import Job, RunConfig, RunOptions, Server, ServerOptions

    job = Job(lambda: model_of(setting), lambda module, batch: module(batch).sum(), list, optimizer=sgd)
    run = RunOptions(
        **{"world_size": setting.workers, "quorum": setting.workers, "rounds": 1 << 40, **more},
        save_every=setting.save_every,
    )
    config = RunConfig(
        rounds=run.rounds,
        batch_size=32,
        push_codec=setting.codec,
        pull_codec=setting.pull,
        compression=setting.planes,
    )
    folder = Path(setting.folder)
    options = ServerOptions(
        listen="127.0.0.1:0", state=folder / "state", output=folder / "model.pth", linger_s=0
    )
    with Server(job, run, config, options) as server:
        pipe.send(str(server.invite))
        _until_closed(pipe)


def our_worker(setting: Setting, invite: str, number: int) -> Any:
    """Return what does one step of a worker."""
    from softs_fast.paramserver import RemoteOptimizer

    module = model_of(setting)
    optimizer = RemoteOptimizer(module, invite)
    gradients(module, number)

    def step() -> tuple[int, int]:
        optimizer.step()
        return optimizer.traffic.sent_bytes, optimizer.traffic.received_bytes

    return step


def sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


# --- Plain HTTP: as many bytes, and nothing else ---


def plain_server(setting: Setting, pipe: Connection) -> None:
    """Serve bodies by the same HTTP server; an answer waits for all bodies of its round."""
    import uvicorn

    n = 2 * setting.n
    bodies = {i: bytearray(n) for i in range(setting.workers)}
    weights = bytes(n)
    sent = [0] * setting.workers
    changed = asyncio.Condition()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        number, turn = (int(word) for word in scope["path"].split("/")[1:])
        answer: bytes = b""
        if scope["method"] == "POST":
            body, at, more = bodies[number], 0, True
            while more:
                message = await receive()
                piece, more = message.get("body", b""), message.get("more_body", False)
                body[at : at + len(piece)] = piece
                at += len(piece)
            async with changed:
                sent[number] = turn
                changed.notify_all()
        else:
            async with changed:
                await changed.wait_for(lambda: min(sent) >= turn)
            answer = weights
        head = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for at in range(0, len(answer), 256 << 10):
            await send(
                {"type": "http.response.body", "body": answer[at : at + (256 << 10)], "more_body": True}
            )
        await send({"type": "http.response.body", "body": b""})

    async def serve() -> None:
        config = uvicorn.Config(application, http="h11", ws="none", lifespan="off", log_config=None, port=0)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        pipe.send(server.servers[0].sockets[0].getsockname()[1])
        await asyncio.to_thread(_until_closed, pipe)
        task.cancel()

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(serve())
    os._exit(0)


def plain_worker(setting: Setting, port: int, number: int) -> Any:
    """Return what sends and fetches as many bytes as a worker with bfloat16 both ways."""
    import urllib3

    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, retries=False, timeout=WATCHDOG_S)
    body, room = os.urandom(2 * setting.n), bytearray(2 * setting.n)
    turns = counted = 0

    def step() -> tuple[int, int]:
        nonlocal turns, counted
        turns += 1
        pool.request("POST", f"/{number}/{turns}", body=body)
        answer = pool.request("GET", f"/{number}/{turns}", preload_content=False)
        view, at = memoryview(room), 0
        while n := answer.readinto(view[at : at + (256 << 10)]):
            at += n
        answer.release_conn()
        assert at == len(room), at
        counted += at
        return counted, counted

    return step


# --- ComputeShare, from a folder of the user ---


def their_server(setting: Setting, pipe: Connection) -> None:
    """Serve their application, as its main part does it, with another model; it is not changed otherwise."""
    sys.path.insert(0, os.environ["COMPUTESHARE"])
    os.chdir(setting.folder)
    import socket

    import server as theirs  # type: ignore[import-not-found]
    import torch
    import uvicorn

    theirs.global_model = model_of(setting)
    theirs.SERVER_PIN, theirs.BUFFER_SIZE, theirs.TARGET_VERSIONS = _PIN, setting.workers, 1 << 40
    rate = 0.01 * setting.workers
    theirs.optimizer = torch.optim.SGD(theirs.global_model.parameters(), lr=rate, momentum=0.9)
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    config = uvicorn.Config(theirs.app, log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


def their_worker(setting: Setting, port: int, number: int) -> Any:
    """Return what does the rounds of their worker's loop with its own functions, without data and the model's passes."""
    sys.path.insert(0, os.environ["COMPUTESHARE"])
    import requests  # type: ignore[import-untyped]
    import worker as theirs  # type: ignore[import-not-found]

    theirs.SERVER_URL, theirs.WORKER_PIN = f"http://127.0.0.1:{port}", _PIN
    received = 0

    def patient(real: Callable[..., Any]) -> Callable[..., Any]:
        def request(*arguments: Any, **options: Any) -> Any:
            nonlocal received
            # Its time-outs, 15 and 30 s, are shorter than an answer with a model of this size takes.
            answer = real(*arguments, **{**options, "timeout": WATCHDOG_S})
            received += len(answer.content)
            return answer

        return request

    theirs.requests.get, theirs.requests.post = patient(requests.get), patient(requests.post)
    module = model_of(setting)
    gradients(module, number)
    last = -1

    def step() -> tuple[int, int]:
        nonlocal last
        while theirs.get_server_version() == last:
            time.sleep(0.5)
        version = theirs.pull_model(module)
        grads = {name: one.grad for name, one in module.named_parameters()}
        assert theirs.submit_gradients(f"w{number}", grads, version) != "STALE"
        last = version
        time.sleep(1.0)
        return theirs.total_bytes_sent, received

    return step


@contextlib.contextmanager
def files() -> Iterator[str]:
    """Give a folder for the files of a run."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def _started(context: Any, target: Any, *arguments: Any) -> tuple[Any, Connection]:
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _received(pipe: Connection) -> Any:
    if not pipe.poll(WATCHDOG_S):
        raise TimeoutError(f"a process of the bench has said nothing for {WATCHDOG_S:g} s")
    return pipe.recv()


def _worker(work: Any, setting: Setting, address: Any, number: int, pipe: Connection) -> None:
    import torch

    # Each has one core of the machine at best.
    torch.set_num_threads(1)
    step = work(setting, address, number)
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            counts = (0, 0)
            for _ in range(pipe.recv()):
                counts = step()
            pipe.send(counts)
    os._exit(0)


def _until_closed(pipe: Connection) -> None:
    with contextlib.suppress(EOFError):
        pipe.recv()
