"""Makes every handle that a user can hold, and uses each in a forked child: what comes of it there, and afterwards here."""

from __future__ import annotations

import gc
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import factories
import numpy as np
import torch
from fake_server import FakeServer
from waiting import WATCHDOG_S

import softs_fast as sf
from softs_fast import dataflow as df
from softs_fast.averaging import AverageAll, DiLoCo, Rules, SelectiveAveraging
from softs_fast.collectives import HierarchicalStrategy, LinkStrategy, ShmStrategy
from softs_fast.coordination.health import WorkerHealth
from softs_fast.coordination.node import Membership, TrainingState, WorkerNode
from softs_fast.coordination.session.calls import CoordinatorClient
from softs_fast.durable import Lock
from softs_fast.paramserver import (
    Job,
    RemoteOptimizer,
    RunConfig,
    RunOptions,
    Server,
    ServerOptions,
    WorkerOptions,
)
from softs_fast.snapshots import Members, Publisher, RemoteWindow, SnapshotLayout, Window

#: Uses by their names; the first one is made again by the process that made the handle.
Uses = dict[str, Callable[[], object]]


CONFIG = sf.BatchConfig([sf.TensorSpec("x", (2,), "float32")])


class Doubles(df.Role):
    """A role that doubles."""

    def double(self, rows: df.Rows) -> dict[str, Any]:
        """Return twice the column."""
        return {"y": 2 * rows["x"]}


def net() -> tuple[torch.nn.Linear, torch.optim.SGD]:
    """Return a model with gradients, and its optimizer."""
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def strategies(stack: ExitStack, folder: Path) -> Iterator[tuple[str, Uses]]:
    """Groups of one rank, each with the calls of all."""
    groups: dict[str, Any] = {
        "ShmStrategy": ShmStrategy(),
        "LinkStrategy": LinkStrategy(),
        "HierarchicalStrategy": HierarchicalStrategy(ShmStrategy(), LinkStrategy()),
    }
    for name, group in groups.items():
        stack.enter_context(group.init(0, 1, folder / name))
        yield (
            name,
            {
                "all_reduce": lambda group=group: group.all_reduce(torch.ones(2)),
                "barrier": group.barrier,
                "close": group.close,
                # As at the end of a process.
                "free": vars(group).clear,
            },
        )
    bucket = groups["ShmStrategy"].bucket({"x": torch.ones(2)})
    yield "Bucket", {"all_reduce": bucket.all_reduce}


def trainings(stack: ExitStack, folder: Path, address: str) -> Iterator[tuple[str, Uses]]:
    """What averages, publishes or takes part in a job."""
    shm = stack.enter_context(ShmStrategy().init(0, 1, folder / "averaging"))
    model, optimizer = net()
    weights = dict(model.named_parameters())
    yield "AverageAll", {"step": AverageAll(model, shm, every=1).step}
    yield "DiLoCo", {"step": DiLoCo(model, shm, every=1).step}
    selective = SelectiveAveraging(model, optimizer, Rules(), meet=folder / "meet", rank=0)
    stack.callback(selective.shutdown)
    yield "SelectiveAveraging", {"step": lambda: selective.step(metric=0.5), "shutdown": selective.shutdown}
    window = stack.enter_context(Window(SnapshotLayout.of(weights)))
    yield (
        "Window",
        {"publish": lambda: window.publish(weights, step=1, metric=None, trained=0), "close": window.close},
    )
    remote = stack.enter_context(RemoteWindow.open(window.address))
    yield "RemoteWindow", {"header": remote.header, "close": remote.close}
    members = stack.enter_context(Members(folder / "members", window, rank=0))
    yield "Members", {"refresh": members.refresh, "close": members.close}
    publisher = stack.enter_context(Publisher(window, weights, {}, optimizer))
    yield (
        "Publisher",
        {
            "begin": lambda: publisher.begin(step=0, metric=None, trained=0),
            "wait": publisher.wait,
            "close": publisher.close,
        },
    )
    node = stack.enter_context(WorkerNode(address, TrainingState(*net()), worker_id="node", seat=0))

    def make_step() -> None:
        with node.step():
            pass

    def checkpoint() -> None:
        with node.checkpoint(str(folder / "none")):
            pass

    yield "WorkerNode", {"step": make_step, "checkpoint": checkpoint, "close": node.close}
    member = stack.enter_context(Membership(address, worker_id="member", seat=1))
    yield (
        "Membership",
        {
            "not_ready": lambda: member.not_ready,
            "next_epoch": lambda: member.next_epoch(3600.0),
            "close": member.close,
        },
    )
    client = stack.enter_context(CoordinatorClient(address))
    yield "CoordinatorClient", {"status": client.status, "close": client.close}
    health = stack.enter_context(WorkerHealth(node, "127.0.0.1:0"))
    yield "WorkerHealth", {"start": health.start, "close": health.close}


def samples(stack: ExitStack, folder: Path) -> Iterator[tuple[str, Uses]]:
    """What moves samples, and flows."""
    ends = sf.EndpointConfig(f"ipc://{folder}/f", f"ipc://{folder}/b")
    broker = stack.enter_context(sf.Broker(ends))
    yield "Broker", {"stats": lambda: broker.stats, "stop": broker.stop}
    supplier = sf.Supplier(
        lambda product: {"x": np.ones(2, np.float32)}, ["m"], ends.backend, batch_config=CONFIG
    )
    stack.enter_context(supplier)
    yield "Supplier", {"hello": supplier.hello, "stop": supplier.stop}
    client = stack.enter_context(sf.Client(ends.frontend, sf.ShmMedium, CONFIG.nbytes(), 4))
    yield "Client", {"request_sample": lambda: client.request_sample("m", 500), "close": client.close}
    loader = sf.SoftDataLoader("m", ends.frontend, CONFIG, sf.ShmMedium, num_slots=8, batch_size=2)
    batches = iter(loader)
    next(batches)
    stack.callback(loader.close)
    yield (
        "SoftDataLoader",
        {"next": lambda: next(batches), "iter": lambda: next(iter(loader)), "close": loader.close},
    )
    fleet = stack.enter_context(sf.Fleet(factories.make_supplier))
    yield (
        "Fleet",
        {
            "stats": lambda: fleet.stats,
            "states": lambda: fleet.states,
            "scale": lambda: fleet.scale(2),
            "close": fleet.close,
        },
    )
    role = df.place(Doubles, name="doubles")
    call = df.call(role.double, "x", rows=1, interface=df.Interface.INFERENCE)
    flow = df.Flow([call], source=({"x": torch.ones(1)} for _ in range(99)))
    flow = stack.enter_context(flow)
    yield "Flow", {"steps": lambda: next(flow.steps(1)), "close": flow.reset}
    flows = stack.enter_context(df.Flow.in_processes("flows:make_light"))
    yield "Flow.in_processes", {"steps": lambda: next(flows.steps(1)), "close": flows.reset}


def rounds(stack: ExitStack, folder: Path) -> Iterator[tuple[str, Uses]]:
    """What trains with a parameter server, and files."""
    server = stack.enter_context(FakeServer(net()[0], RunConfig(rounds=9, batch_size=1)))
    model, _ = net()
    remote = stack.enter_context(RemoteOptimizer(model, server.invite, WorkerOptions("w")))
    yield "RemoteOptimizer", {"step": remote.step, "close": remote.close}
    job = Job(lambda: net()[0], lambda module, batch: module(batch).sum(), list)
    run = RunOptions(world_size=1, rounds=100)
    files = ServerOptions(listen="127.0.0.1:0", state=folder / "s.state", output=folder / "o.pth", linger_s=0)
    real = stack.enter_context(Server(job, run, RunConfig(rounds=1, batch_size=4), files))
    yield (
        "Server",
        {
            "status": real.status,
            "wait": lambda: real.wait(0.1),
            "stop_run": real.stop_run,
            "close": real.close,
        },
    )
    lock = stack.enter_context(closing(Lock(folder / "lock", "the lock")))
    yield "Lock", {"close": lock.close}


def everything(stack: ExitStack, folder: Path, address: str) -> Iterator[tuple[str, Uses]]:
    """Make all handles."""
    yield from strategies(stack, folder)
    yield from trainings(stack, folder, address)
    yield from samples(stack, folder)
    yield from rounds(stack, folder)


def outcome(use: Callable[[], object]) -> str:
    """Return what comes of a use: its exception, or "works"."""
    try:
        use()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "works"


def in_fork(use: Callable[[], object]) -> str:
    """Return what comes of a use in a forked child, with its handles freed there; "hangs" if it does not end."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        said = outcome(use)
        gc.collect()
        os.write(writes, said.encode(errors="replace"))
        os._exit(0)
    os.close(writes)
    try:
        if not select.select([reads], [], [], WATCHDOG_S)[0]:
            return "hangs"
        return os.read(reads, 1000).decode() or "ended"
    finally:
        os.close(reads)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def hold(pipe: Connection, folder: Path, address: str) -> None:
    """Send for each handle its name, what comes of each use in a child, and then of the first one here."""
    # The first optimizer of a process imports much, which is not collected in each child.
    net()
    gc.collect()
    gc.freeze()
    with ExitStack() as stack:
        for name, uses in everything(stack, folder, address):
            outcomes = {use: in_fork(call) for use, call in uses.items()}
            pipe.send((name, outcomes, outcome(next(iter(uses.values())))))
