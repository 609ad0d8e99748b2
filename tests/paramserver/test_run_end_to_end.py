"""Real servers and real workers: the same bits as one process, deaths, late joins, restarts, proxies, TLS."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from side_by_side import in_threads
from token_files import token_file
from waiting import WATCHDOG_S

pytest.importorskip("urllib3", reason="needs the extra paramworker")
pytest.importorskip("uvicorn", reason="needs the extra server")
import torch
from lying_proxy import Fault, LyingProxy
from process import Process, Zygote
from remote_worker import JOB, N_SAMPLES, data, loss, model, sgd
from torch import nn

from softs_fast.errors import ConfigError
from softs_fast.paramserver.owner.access import OwnerAccess, read_owner, write_owner
from softs_fast.paramserver.owner.client import OwnerClient
from softs_fast.paramserver.server.options import TlsFiles
from softs_fast.paramserver.server.training.state_file import load_state
from softs_fast.paramserver.wire.invite import Invite
from softs_fast.paramserver.wire.signing import owner_key
from softs_fast.paramserver.worker.batches import order, shard
from softs_fast.paramserver.worker.optimizer import RemoteOptimizer
from softs_fast.paramserver.worker.options import WorkerOptions
from softs_fast.paramserver.worker.progress import Progress
from softs_fast.paramserver.worker.training import train

OPTIONS = WorkerOptions("test", rejoin_timeout_s=30.0)
EXACT: dict[str, Any] = {"batch_size": 8, "push_codec": "f32", "compression": False, "seed": 3}

#: Until all workers have been told of the end, however late they ask.
LINGER = {"linger_s": 40.0}


class Kept(Progress):
    """Keeps the optimizer."""

    def joined(self, optimizer: RemoteOptimizer) -> None:
        self.worker = optimizer
        super().joined(optimizer)


def work_in_threads(
    n: int, invite: Invite, options: WorkerOptions = OPTIONS, kind: type[Kept] = Kept
) -> list[RemoteOptimizer]:
    """Have n workers of this process train until the run is over."""
    seen = [kind(io.StringIO()) for _ in range(n)]
    in_threads(lambda one: train(JOB, invite, options, "cpu", one), seen)
    return [one.worker for one in seen]


def alone(world_size: int, rounds: int, batch_size: int, seed: int, lr: float) -> torch.Tensor:
    """The weights of one process that takes the batches of all workers in each step."""
    module, samples = model(), data()
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    shares = [shard(order(seed, 0, N_SAMPLES), rank, world_size) for rank in range(world_size)]
    for step in range(rounds):
        indices = [i for share in shares for i in share[step * batch_size : (step + 1) * batch_size]]
        optimizer.zero_grad()
        loss(module, torch.utils.data.default_collate([samples[i] for i in indices])).backward()
        optimizer.step()
    return torch.cat([one.detach().reshape(-1) for one in module.parameters()])


def trained(path: Path) -> torch.Tensor:
    state = torch.load(path, weights_only=True)
    return torch.cat([state[name].reshape(-1) for name, _ in model().named_parameters()])


def test_workers_train_as_one_process_on_the_same_batches(serve: Any, tmp_path: Path) -> None:
    server = serve(JOB, EXACT, LINGER, world_size=3, rounds=4, quorum=3, scale_rate="none")
    workers = work_in_threads(3, server.invite)
    assert server.wait(WATCHDOG_S)
    assert torch.allclose(trained(tmp_path / "o.pth"), alone(3, 4, 8, 3, 0.05), atol=1e-6)
    for worker in workers:
        last = torch.cat([one.detach().reshape(-1) for one in worker.module.parameters()])
        assert torch.equal(last, trained(tmp_path / "o.pth")), "each worker has the last step"
        assert worker.counts.counted == 4
        assert worker.counts.stale == 0


def test_a_lossy_codec_and_local_steps(serve: Any, tmp_path: Path) -> None:
    config = EXACT | {"push_codec": "int8", "compression": True, "pull_codec": "bf16", "local_steps": 2}
    server = serve(JOB, config, LINGER, world_size=2, rounds=12, quorum=2, scale_rate="none")
    work_in_threads(2, server.invite)
    assert server.wait(WATCHDOG_S)
    module = model()
    module.load_state_dict(torch.load(tmp_path / "o.pth", weights_only=True))
    x, y = data().tensors
    assert nn.functional.mse_loss(module(x), y) < 0.9 * nn.functional.mse_loss(model()(x), y)


def test_a_proxy_that_fails_often_costs_no_push_and_doubles_none(serve: Any, tmp_path: Path) -> None:
    faults = [None, Fault(drop_answer=True), None, None, Fault(page=502), None, Fault(cut_request=5000), None]
    faults += [Fault(replay=True), None, None, Fault(cut_answer=900), Fault(change=500)]
    config = EXACT | {"first_part_bytes": 256 << 10, "max_part_bytes": 256 << 10}
    server = serve(JOB, config, LINGER, world_size=2, rounds=3, quorum=2, scale_rate="none")
    with LyingProxy(
        int(server.invite.url.rpartition(":")[2]), lambda method, path, number: faults[number % len(faults)]
    ) as proxy:
        work_in_threads(2, server.invite.moved(proxy.url))
        assert proxy.n_faults >= 6
    assert server.wait(WATCHDOG_S)
    # Each push is of 8 samples; one that was counted twice, or not at all, would show here.
    assert torch.allclose(trained(tmp_path / "o.pth"), alone(2, 3, 8, 3, 0.05), atol=1e-6)


def test_each_sample_is_counted_once_per_epoch(serve: Any) -> None:
    run = {"rounds": 1000, "dataset_size": N_SAMPLES, "epochs": 2, "quorum": 1, "scale_rate": "none"}
    server = serve(JOB, EXACT, LINGER, world_size=3, **run)
    workers = work_in_threads(3, server.invite)
    assert server.wait(WATCHDOG_S)
    assert sum(worker.counts.samples for worker in workers) == 2 * N_SAMPLES


def test_a_server_that_starts_again_goes_on_with_the_same_workers(serve: Any, tmp_path: Path) -> None:
    run = {"world_size": 2, "rounds": 6, "quorum": 2, "scale_rate": "none"}
    first = serve(JOB, EXACT, LINGER, **run)
    address = first.invite.url.removeprefix("http://")
    begun, go_on = threading.Barrier(3), threading.Event()

    class Held(Kept):
        def pushed(self) -> None:
            super().pushed()
            if self.worker.counts.counted == 2:
                begun.wait(WATCHDOG_S)
                assert go_on.wait(WATCHDOG_S)

    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work_in_threads, 2, first.invite, OPTIONS, Held)
        begun.wait(WATCHDOG_S)
        first.close()
        second = serve(JOB, EXACT, LINGER | {"listen": address}, **run)
        go_on.set()
        workers = working.result()
    assert second.wait(WATCHDOG_S)
    assert [one.version for one in workers] == [(2, 6)] * 2
    assert torch.allclose(trained(tmp_path / "o.pth"), alone(2, 6, 8, 3, 0.05), atol=1e-6)


def test_a_worker_of_another_model_is_refused_by_the_first_difference(serve: Any) -> None:
    server = serve(JOB, EXACT, LINGER)
    other = model()
    other[2] = nn.Linear(300, 301)  # type: ignore[operator]
    with pytest.raises(
        ConfigError,
        match=r"2.weight \(float32 \[300, 300\]\), the worker has 2.weight \(float32 \[301, 300\]\)",
    ):
        RemoteOptimizer(other, server.invite, OPTIONS)
    with pytest.raises(ConfigError, match="does not know the invite"):
        RemoteOptimizer(model(), replace(server.invite, secret=bytes(32)), OPTIONS)
    with pytest.raises(ConfigError, match="it speaks no TLS"):
        RemoteOptimizer(model(), server.invite.moved(server.invite.url.replace("http", "https")), OPTIONS)


def test_a_certificate_of_its_own_is_pinned_by_the_invite(serve: Any, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    tls = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", self_signed=True)
    server = serve(JOB, EXACT, LINGER | {"tls": tls}, rounds=2, scale_rate="none")
    line = str(server.invite)
    for invite, cause in (
        (replace(server.invite, pin=bytes(32)), "is not the one of the invite"),
        (replace(server.invite, pin=None), "is not the one of the invite"),
        (replace(server.invite, pin=None, url=server.invite.url.replace("https", "http")), "it speaks TLS"),
    ):
        with pytest.raises(ConfigError, match=cause):
            RemoteOptimizer(model(), invite, OPTIONS)
    work_in_threads(1, Invite.parse(line))
    assert server.wait(WATCHDOG_S)


def test_holders_of_a_token_need_no_invite(serve: Any, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    own, other = token_file(tmp_path / "own", "a"), token_file(tmp_path / "other", "b")
    # All addresses of this machine: other machines reach it.
    listen = {"listen": f"softs://0.0.0.0:0/digits?token_file={own}"}
    server = serve(JOB, EXACT, LINGER | listen, rounds=2, scale_rate="none")
    port = server.invite.url.rpartition(":")[2]
    near = f"127.0.0.1:{port}"
    known = replace(server.invite, url=f"https://{near}", place=None)
    for invite, cause in (
        (
            f"softs://{near}?token_file={other}",
            f"it does not have the token of {other}; give both ends the same",
        ),
        # With the secret of the run, and without the token.
        (known, "its certificate is not accepted"),
        (replace(known, url=f"http://{near}"), "it speaks TLS"),
    ):
        with pytest.raises(ConfigError, match=cause):
            RemoteOptimizer(model(), invite, OPTIONS)
    saved = load_state(tmp_path / "s.state")
    assert saved is not None
    write_owner(tmp_path / "s.state", OwnerAccess(server.invite, owner_key(saved.owner, saved.job)))
    with OwnerClient(read_owner(tmp_path / "s.state")) as owner:
        status = owner.status()
    assert status is not None
    assert status.version == 0
    # At the first of the two hosts nothing listens.
    work_in_threads(1, Invite.parse(f"softs://127.0.0.1:1,{near}/digits?token_file={own}"))
    assert server.wait(WATCHDOG_S)


def test_one_worker_is_killed_and_one_joins_late(serve: Any, tmp_path: Path) -> None:
    """The killed one costs its lease once, and the rounds go on with those that are there."""
    # The first optimizer of a process imports torch._dynamo, which takes a second.
    zygote = Zygote.of(Path(__file__).parent / "remote_worker.py", "torch._dynamo")
    server = serve(JOB, EXACT, LINGER, world_size=3, rounds=100_000, lost_after_s=6.0, scale_rate="none")
    options = {"invite": str(server.invite), "delay": 0.02}
    workers: list[Process] = []
    try:
        workers += [zygote.fork(f"w{i}", options) for i in range(3)]
        for worker in workers:
            worker.event("joined")
        while workers[0].event("pushed")["version"] < 4:
            pass
        workers[0].kill()
        workers.append(zygote.fork("late", options))
        assert workers[3].event("joined")["rank"] >= 0
        while (last := workers[3].event("pushed"))["counted"] < 3:
            pass
        server.stop_run("enough")
        done = [worker.event("done") for worker in workers[1:]]
        assert server.wait(WATCHDOG_S)
    finally:
        for worker in workers:
            worker.end()
    assert [one["joins"] for one in done] == [1, 1, 1], server.status().log
    assert done[0]["counted"] + done[1]["counted"] >= last["version"]
    assert done[2]["counted"] >= 3
    module = model()
    module.load_state_dict(torch.load(tmp_path / "o.pth", weights_only=True))
    x, y = data().tensors
    assert nn.functional.mse_loss(module(x), y) < 0.8 * nn.functional.mse_loss(model()(x), y)
    assert sgd is JOB.optimizer
