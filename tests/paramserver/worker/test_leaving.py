"""What a worker says of itself: why it ends, and that it waits."""

from __future__ import annotations

import pytest

pytest.importorskip("urllib3", reason="needs the extra paramworker")
import torch
from fake_server import OPTIONS, Answer, FakeServer, linear

from softs_fast.paramserver.job import Job
from softs_fast.paramserver.wire.messages import Leave, RunConfig, Summary, decode, encode
from softs_fast.paramserver.worker.optimizer import RemoteOptimizer
from softs_fast.paramserver.worker.progress import Progress
from softs_fast.paramserver.worker.training import train
from softs_fast.records import replace

CONFIG = RunConfig(rounds=5, batch_size=8, push_codec="f32", compression=False)


class OddError(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError("CUDA error:\n device-side \0 assert \udcff"),
            "RuntimeError: CUDA error: device-side assert \\udcff",
        ),
        (ValueError("x" * 1000), "ValueError: " + "x" * 168),
        (OddError(), "OddError: no text: its __str__ raised RuntimeError"),
        (KeyboardInterrupt(), ""),
    ],
)
def test_the_server_is_told_why_a_worker_ends(error: BaseException, reason: str) -> None:
    told: list[str] = []

    def note(method: str, path: str, body: bytes) -> None:
        if path == "/v1/leave":
            told.append(decode(Leave, body).reason)

    with FakeServer(linear(), CONFIG) as server:
        server.before_body = note  # type: ignore[assignment]
        with pytest.raises(type(error)), RemoteOptimizer(linear(), server.invite, OPTIONS):
            raise error
    assert told == [reason]


def test_a_worker_says_that_it_waits_before_it_does() -> None:
    """A server holds its request for up to 25 s."""
    said: list[str] = []
    module = linear()
    for one in module.parameters():
        one.grad = one.detach().clone()

    def hold(method: str, path: str) -> None:
        if path == "/v1/model":
            said.append("asked")

    with (
        FakeServer(linear(), CONFIG) as server,
        RemoteOptimizer(module, server.invite, OPTIONS, on_progress=said.append) as optimizer,
    ):
        server.before = hold  # type: ignore[assignment]
        optimizer.step()
    assert said == ["push 100 %", "waiting for other workers", "asked"]


def test_a_run_that_ends_while_samples_are_asked_for_is_no_error() -> None:
    """The last push of the worker was too late: the round had closed without it, and it was the last one."""
    config = replace(CONFIG, data="leases")

    def over(method: str, path: str) -> Answer | None:
        if path != "/v1/data":
            return None
        server.version = config.rounds
        return Answer(410, encode(Summary(1, config.rounds, "all epochs are done")))

    job = Job(linear, lambda module, batch: module(batch).sum(), lambda: [torch.zeros(3)] * 8)
    with FakeServer(linear(), config) as server:
        server.before = over
        train(job, server.invite, OPTIONS, "cpu", Progress())
        assert server.left == ["w0"]
