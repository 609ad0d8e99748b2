"""A worker behind a proxy that limits, drops, lies and moves: it trains on, and each push is counted once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("urllib3", reason="needs the extra paramworker")
import torch
from fake_server import OPTIONS, FakeServer
from lying_proxy import Fault, LyingProxy
from torch import nn

from softs_fast.paramserver.wire.messages import RunConfig
from softs_fast.paramserver.worker.optimizer import RemoteOptimizer
from softs_fast.paramserver.worker.options import WorkerOptions

N = 400
STEPS = 3
#: Pushes of 640 kB: three parts of 256 KiB.
CONFIG = RunConfig(
    rounds=STEPS,
    batch_size=4,
    push_codec="f32",
    compression=False,
    first_part_bytes=256 << 10,
    max_part_bytes=256 << 10,
)


def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(N, N, bias=False)


X = torch.randn(4, N, generator=torch.Generator().manual_seed(5))


def run(optimizer: RemoteOptimizer) -> None:
    while not optimizer.is_over:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = optimizer.module(X).square().mean()
            loss.backward()
            return loss.detach()

        optimizer.step(closure)


def train_through(proxy: LyingProxy, server: FakeServer, options: WorkerOptions = OPTIONS) -> RemoteOptimizer:
    """Train until the run is over; the weights must be those of a run without a proxy."""
    with RemoteOptimizer(model(), server.invite.moved(proxy.url), options) as optimizer:
        run(optimizer)
    assert server.version == STEPS
    assert set(server.counted.values()) == {1}
    assert torch.equal(server.contents.parameters, expected())
    return optimizer


def expected() -> torch.Tensor:
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        module(X).square().mean().backward()
        with torch.no_grad():
            module.weight -= 0.1 * module.weight.grad  # type: ignore[operator]
    return module.weight.detach().reshape(-1)  # type: ignore[union-attr, operator]


FAULTS = [
    Fault(page=502),
    Fault(drop_answer=True),
    Fault(cut_request=1000),
    Fault(cut_answer=300),
    Fault(replay=True),
    Fault(change=777),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_any_request_may_fail(fault: Fault) -> None:
    def third(method: str, path: str, number: int) -> Fault | None:
        """Of whatever kind: joins, pulls, announcements, parts, questions."""
        return fault if number % 3 == 1 and not path.endswith("heartbeat") else None

    with FakeServer(model(), CONFIG) as server, LyingProxy(server.port, third) as proxy:
        optimizer = train_through(proxy, server)
        assert proxy.n_faults >= 5
        assert optimizer.counts.counted == STEPS
        assert optimizer.traffic.failures >= (0 if fault.replay else 3)


@pytest.mark.parametrize("limit", [100_000, 30_000])
def test_a_proxy_that_limits_bodies_gets_smaller_ones(limit: int) -> None:
    with FakeServer(model(), CONFIG) as server, LyingProxy(server.port, max_body=limit) as proxy:
        train_through(proxy, server)
        assert max(server.parts) <= limit
        assert max(server.parts) > limit // 4


def test_an_answer_that_is_cut_goes_on_where_it_ended() -> None:
    n_cut = 0

    def fault(method: str, path: str, number: int) -> Fault | None:
        nonlocal n_cut
        if path.startswith("/v1/model") and n_cut < 6:
            n_cut += 1
            return Fault(cut_answer=100_000)
        return None

    with FakeServer(model(), CONFIG) as server, LyingProxy(server.port, fault) as proxy:
        optimizer = train_through(proxy, server)
        # 640 kB in pieces of 100 kB: without ranges it would never arrive.
        assert optimizer.traffic.received_bytes < 4 * N * N * (STEPS + 1) + 10_000


def test_a_tunnel_that_moves_is_followed_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "url"
    options = WorkerOptions("test", rejoin_timeout_s=20.0, url_file=file)
    with FakeServer(model(), CONFIG) as server:
        moved = threading.Event()
        with LyingProxy(server.port) as second:

            def fault(method: str, path: str, number: int) -> Fault | None:
                if number >= 5:
                    # The old address is another one's by now.
                    if not moved.is_set():
                        file.write_text(second.url + "\n")
                        moved.set()
                    return Fault(page=404)
                return None

            with LyingProxy(server.port, fault) as first:
                optimizer = train_through(first, server, options)
                assert second.n_requests > 0
            assert optimizer.session.invite.url == second.url


def test_a_server_that_starts_again_gets_the_push_again_or_refuses_it() -> None:
    """The upload is half done when the server starts from a file: the worker joins again, and computes again."""
    restarts = 0

    def before(method: str, path: str) -> None:
        nonlocal restarts
        if method == "PUT" and restarts == 0 and server.version == 1 and len(server.parts) % 3 == 1:
            restarts += 1
            server.members.clear()
            server.timeline += 1

    with FakeServer(model(), CONFIG) as server:
        server.before = before  # type: ignore[assignment]
        with RemoteOptimizer(model(), server.invite, OPTIONS) as optimizer:
            run(optimizer)
            assert optimizer.traffic.joins == 2
            assert optimizer.counts.stale == 1
            assert optimizer.version[0] == 2
        assert restarts == 1
        assert set(server.counted.values()) == {1}
        assert torch.equal(server.contents.parameters, expected())


def test_a_long_wait_for_weights_is_held_and_cut() -> None:
    """Another worker is slow: requests are held, cut by the road, and asked again, with shorter waits."""
    config = RunConfig(rounds=1, batch_size=4, push_codec="f32", compression=False, max_wait_s=0.05)
    waits: list[str] = []

    def fault(method: str, path: str, number: int) -> Fault | None:
        if "have" in path:
            waits.append(path)
            if len(waits) >= 4:
                with server.changed:
                    server.version += 1
                    server.changed.notify_all()
        return None

    with FakeServer(model(), config, need=2) as server, LyingProxy(server.port, fault) as proxy:
        with RemoteOptimizer(model(), server.invite.moved(proxy.url), OPTIONS) as optimizer:
            run(optimizer)
        assert len(waits) >= 4
        assert all("wait=0.05" in path for path in waits)
