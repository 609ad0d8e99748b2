"""A worker on a machine without the native modules, such as a Mac: it says what is missing, and how far it came."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks

pytest.importorskip("urllib3", reason="needs the extra paramworker")
from fake_server import FakeServer, linear

from softs_fast.paramserver.wire.messages import RunConfig

JOB = """
import torch
from torch import nn
from softs_fast.paramserver.job import Job

def model():
    torch.manual_seed(1)
    return nn.Linear(3, 1)

def job():
    x = torch.linspace(-1, 1, 30).reshape(10, 3)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    return Job(model, lambda module, batch: nn.functional.mse_loss(module(batch[0]), batch[1]), lambda: data)
"""


def without_native(
    say: Callable[[Any], None], rank: int, size: int, folder: str, *arguments: str
) -> tuple[int, str]:
    """Run the command in a folder; its exit status, and its errors."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "softs_fast"]:
        del sys.modules[name]
    sys.modules["softs_fast._core"] = sys.modules["softs_fast._kernels"] = None  # type: ignore[assignment]
    os.chdir(folder)
    sys.path.insert(0, "")
    sys.stderr = io.StringIO()
    from softs_fast.cli import main

    return main(arguments), sys.stderr.getvalue()


def test_ctrl_c_ends_it_with_a_summary(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(JOB)
    config = RunConfig(rounds=1000, batch_size=3)
    # The round waits for a second worker, which never comes.
    with FakeServer(linear(), config, need=2) as server:
        command = ["paramserver", "worker", str(server.invite), "tiny:job", "--device", "cpu"]
        with ranks.start(without_native, 1, str(tmp_path), *command) as running:
            server.wait_for(lambda: server.requests["GET /v1/model"] >= 2)
            os.kill(running.processes[0].pid, signal.SIGINT)
            status, errors = running.receive(0)
        assert status == 130
        assert "1 pushes of 3 samples counted, 0 stale" in errors
        assert "Traceback" not in errors
        assert server.left == ["w0"]
